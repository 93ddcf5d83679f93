"""The answers: what each question returns. Field names carry their units; they are the fields of ``--json``.

One module for each question, so that a command loads only its own.
"""
