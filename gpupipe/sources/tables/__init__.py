"""Rows and columns: manifests, queries, Parquet, Hugging Face datasets. All by pyarrow, the extra `tables`; imported
only where there is such data."""
