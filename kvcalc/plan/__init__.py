"""The questions: size, decode, prefill, roofline, and what explains their answers."""
