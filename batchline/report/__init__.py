"""Figures of measured data, and the page that holds them."""
