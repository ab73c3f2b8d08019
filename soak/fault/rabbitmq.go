package fault

// rabbitmqFaults are those of the broker.
func rabbitmqFaults() []Fault { return nil }
