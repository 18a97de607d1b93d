"""Speed: each part of the library against the textbook way of doing the same, in turns in one process."""
