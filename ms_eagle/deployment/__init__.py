"""Compiled deployment: graphs exported once as MINDIR, run without the model code (docs/deployment.md).

``export`` writes a bundle, ``bundle`` checks one, ``graphs`` runs it under the ordinary host loop, ``rules``
and ``inspection`` tell what its graphs are made of. Nothing that a run imports defines a Cell.
"""
