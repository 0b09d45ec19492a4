"""What operators look at: depths, letters, settings of the cluster."""
