"""What a case takes that was not measured."""
