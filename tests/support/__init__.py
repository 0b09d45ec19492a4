"""What tests share: here what many suites use, the rest in a room for each subject."""
