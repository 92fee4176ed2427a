"""What a case takes that was not measured, and how well forecasts sealed before any run of a chip hold."""
