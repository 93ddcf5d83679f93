"""The vocabulary of the other layers: units, formats, profiles, reports, errors. Standard library only."""
