"""Limosa: tables and streams whose partitions move while they are used."""
