"""Reports as files: CSV, FOCUS, Parquet, workbook and document, read back and checked against the meters."""
