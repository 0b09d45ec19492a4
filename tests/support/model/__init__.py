"""The model of the protocol (tests/model/HandOff.tla), as a state machine in Python."""
