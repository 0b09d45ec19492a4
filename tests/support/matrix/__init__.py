"""The cells of the matrix, and the program that works on one."""
