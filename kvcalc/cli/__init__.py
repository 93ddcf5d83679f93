"""The command line. Commands are modules that are imported when they are run, not before."""

import gc

# Start-up makes thousands of classes and functions that stay: to look for garbage among them costs a tenth of its time.
gc.set_threshold(100_000, 20, 20)
