"""The command line. Commands are modules that are imported when they are run, not before."""
