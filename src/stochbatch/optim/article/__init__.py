"""The article's two algorithms, each on one screen: to read, and to test the fast code against."""
