"""Reports as files: CSV, FOCUS, Parquet, workbook and document, read back and held against the meters."""
