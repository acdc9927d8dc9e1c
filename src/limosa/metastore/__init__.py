"""Where does the agreed state live? In memory for tests and simulation, else in a SQLite file."""
