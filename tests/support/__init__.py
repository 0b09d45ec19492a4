"""Code that tests share: modules for many suites, and a package for each subject."""
