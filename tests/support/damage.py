"""Damage to files that must be noticed."""

import json

from ms_eagle.deployment.manifest import FILE


def rewrite(bundle, change):
    """Change the manifest of a bundle."""
    path = bundle / FILE
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def flip(path):
    """One bit, in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    """A file that ends early."""
    path.write_bytes(path.read_bytes()[:-7])
