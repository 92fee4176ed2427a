"""What operations are judged by: metrics, columns and figures, one package for each analysis."""
