"""Reports as text: tables, charts, JSON, CSV and Markdown."""
