"""The RocksDB backend: state in a database on local disk."""
