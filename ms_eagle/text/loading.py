"""Which of a model's vocabularies is read, and by which library; only that one is imported."""

from pathlib import Path

from ms_eagle.errors import UserError
from ms_eagle.text.settings import read_settings
from ms_eagle.text.tokenizer import Tokenizer


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face style directory: tokenizer.json if it is there, else tokenizer.model.

    Raises UserError when there is neither, or when a file is damaged or of a kind not supported.
    """
    directory = Path(directory)
    settings = read_settings(directory)
    if (path := directory / "tokenizer.json").is_file():
        from ms_eagle.text.json_tokenizer import JsonTokenizer

        return JsonTokenizer(path, settings)
    if (path := directory / "tokenizer.model").is_file():
        from ms_eagle.text.sentencepiece_tokenizer import SentencePieceTokenizer

        return SentencePieceTokenizer(path, settings)
    raise UserError(
        f"{directory}: no tokenizer found; expected tokenizer.json (Hugging Face) or tokenizer.model "
        "(SentencePiece) beside the weights; copy it there from the model's repository"
    )
