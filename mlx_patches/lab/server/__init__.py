"""The server lab: a concurrent request must mean what it means as a single one.

``oracle`` defines a tiny model whose every answer is known, ``folder`` writes it as a model folder,
``process`` and ``client`` run and query a server, ``parameters`` and ``contexts`` are the matrix,
``judges`` check the answers, and ``runner`` fills it.
"""
