"""Fakes at the seams that are shipped: a toy model behind the executor port, a byte tokenizer, a child process."""
