"""What the other layers are written in: units, formats, profiles, reports, errors. Standard library only."""
