"""HTML read back: its elements, its text, and what it would load."""

from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br"}


class Elements(HTMLParser):
    """All elements as ``[tag, attributes, text]``; complains about wrong nesting."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.text = [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.found.append([tag, dict(attributes), ""])
        if tag not in VOID:
            self.open.append(len(self.found) - 1)

    def handle_startendtag(self, tag, attributes):
        self.found.append([tag, dict(attributes), ""])

    def handle_endtag(self, tag):
        assert self.found[self.open.pop()][0] == tag

    def handle_data(self, data):
        self.text += f" {data}"
        for index in self.open:
            self.found[index][2] += data

    def all(self, tag, kind=None):
        return [
            e for e in self.found if e[0] == tag and (kind is None or kind in e[1].get("class", "").split())
        ]

    def says(self, words):
        """Whether the text has ``words``, whatever elements and white space they are spread over."""
        return words in " ".join(self.text.split())

    @property
    def loads(self):
        """Addresses that are neither in the page nor in the attribute itself."""
        names = ("src", "href", "xlink:href", "action")
        addresses = [e[1].get(name) or "#" for e in self.found for name in names]
        return [address for address in addresses if not address.startswith(("#", "data:"))]
