"""A model on one machine with llama.cpp: unlike devices beside the host's memory."""
