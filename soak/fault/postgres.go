package fault

// postgresFaults are those of the database and the connections to it.
func postgresFaults() []Fault { return nil }
