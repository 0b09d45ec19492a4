"""Tools for operators: backlogs, letters, and checks of the cluster's settings."""
