"""What is about other tools: their config keys, the words of their commands, their Estimators."""
