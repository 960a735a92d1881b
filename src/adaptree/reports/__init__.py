"""Cards, figures and pages."""
