package fault

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
	"github.com/cdc-relay/cdc-relay/test/soak/load"
)

// The flags of these tests. Without -faults only a few quick faults run, in one world.
var (
	allFaults  = flag.Bool("faults", false, "make every fault; takes most of an hour")
	hold       = flag.Duration("hold", 4*time.Second, "how long each fault is held")
	seed       = flag.Uint64("seed", 1, "what chooses the details of faults and load")
	relayCount = flag.Int("relays", 2, "how many relays run")
	keep       = flag.Bool("keep", false, "keep the logs and the history also of tests that pass")
	times      = flag.Int("times", 1, "how often each fault is made")
	messages   = flag.Float64("rate", 300, "messages a second that the writers insert")
	recovery   = flag.Duration("recover-within", 2*time.Second, "how long after a fault nothing new may arrive, with -faults")
)

// binary is the relay under test.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	file, err := filepath.Abs("../../../.dev/soak/cdc-relay")
	if err == nil {
		var out []byte
		out, err = exec.Command("go", "build", fmt.Sprintf("-race=%t", raceDetector), "-o", file, "../../../cmd/cdc-relay").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the relay:", err)
		os.Exit(1)
	}
	binary = file
	services.Main(m)
}

// Each is caused for a short time, one after the other, in one world.
func TestAFewFaultsLoseNothing(t *testing.T) {
	if *allFaults {
		t.Skip("-faults runs them too")
	}
	few := map[string]bool{
		"relay-kill-leader": true, "relay-restart-rolling": true, "postgres-stop-fast": true, "postgres-cut": true,
	}
	r := startRun(t, newTestWorld(t, 0), 10*time.Second) // other packages are tested at the same time
	r.begin()
	made := 0
	for _, fault := range All() {
		if few[fault.Name] {
			made++
			r.make(made, fault, randomOf(fault), 2*time.Second)
		}
	}
	r.end()
	if made != len(few) {
		t.Errorf("%d of %d faults were caused", made, len(few))
	}
}

// Runs each fault separately under load, and checks the history.
func TestFault(t *testing.T) {
	if !*allFaults {
		t.Skip("run it with -faults")
	}
	for _, fault := range All() {
		t.Run(fault.Name, func(t *testing.T) { oneFault(t, fault) })
	}
}

// oneFault is a run with its own world.
func oneFault(t *testing.T, fault Fault) {
	w := newTestWorld(t, fault.Needs)
	if can, why := w.Can(fault); !can {
		t.Skip(why)
	}
	r := startRun(t, w, *recovery)
	r.begin()
	random := randomOf(fault)
	for id := range *times {
		r.make(id+1, fault, random, *hold)
	}
	r.end()
}

// begin waits until messages arrive.
func (r *testRun) begin() {
	r.t.Helper()
	if _, err := r.world.AwaitLeader(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.awaitDelivered(100)
}

// randomOf chooses the details of a fault, independent of other faults.
func randomOf(fault Fault) *rand.Rand { return rand.New(rand.NewPCG(*seed, nameHash(fault.Name))) }

// make causes the fault and waits until messages that were committed after it arrive.
func (r *testRun) make(id int, fault Fault, random *rand.Rand, hold time.Duration) {
	r.t.Helper()
	r.record.FaultBegan(r.world.Tell(id, fault, ""))
	detail, err := fault.Run(r.t.Context(), r.world, random, hold)
	r.record.FaultHealed(id)
	r.t.Logf("%s: %s", fault.Name, detail)
	if err != nil {
		r.t.Errorf("%s: %v", fault.Name, err)
	}
	r.awaitDelivered(r.record.Counts().Acknowledged + 300)
}

func nameHash(name string) uint64 {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(name)) // never fails
	return hash.Sum64()
}

// newTestWorld has private servers, and relays that are not started.
func newTestWorld(t *testing.T, needs Needs) *World {
	t.Helper()
	topology := load.DefaultTopology("soak")
	topology.Quorum = needs.Has(Cluster)
	folder := t.TempDir()
	w, err := NewWorld(t.Context(), Config{
		Binary: binary, Folder: folder, RelayCount: *relayCount, Standby: needs.Has(Standby), Cluster: needs.Has(Cluster),
		// Retries and dead letters must complete within the test.
		RelayArgs: []string{"--backoff-time", "200ms", "--max-backoff", "2s", "--max-retries", "6"},
		Declare:   func(ctx context.Context, url string) error { return load.Declare(ctx, url, topology) },
		Violation: func(what string) { t.Errorf("violation: %s", what) },
		Log:       func(line string) { t.Log(line) },
	})
	services.Need(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Hang())
		defer cancel()
		if err := w.Close(ctx); err != nil {
			t.Errorf("close the world: %v", err)
		}
		keepLogs(t, folder)
	})
	return w
}

// keepLogs saves the logs of a failed test, whose folder will be removed.
func keepLogs(t *testing.T, folder string) {
	if !t.Failed() && !*keep {
		return
	}
	kept := filepath.Join(filepath.Dir(binary), filepath.Base(t.Name())+time.Now().Format("-150405"))
	if err := os.CopyFS(kept, os.DirFS(folder)); err != nil {
		t.Errorf("keep the logs: %v", err)
		return
	}
	t.Logf("logs and history: %s", kept)
}

// testRun is the load of one test and its recorded history.
type testRun struct {
	t         *testing.T
	world     *World
	topology  load.Topology
	file      *os.File
	record    *history.Recorder
	state     load.State
	writers   *load.Writers
	consumers *load.Consumers
}

func startRun(t *testing.T, w *World, recoverWithin time.Duration) *testRun {
	t.Helper()
	ctx := t.Context()
	file, err := os.Create(filepath.Join(w.Folder, "history.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	topology := load.DefaultTopology("soak")
	r := &testRun{
		t: t, world: w, topology: topology, file: file,
		record: history.NewRecorder(file, history.Run{Seed: int64(*seed), RecoverWithin: recoverWithin}),
		state:  load.State{DatabaseURL: w.Database, Table: w.Table, Run: "fault"},
	}
	w.Recorder = r.record
	if err := r.state.CreateTables(ctx); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	r.consumers = load.StartConsumers(ctx, load.ConsumerOptions{AMQPURLs: []string{w.Broker}, Topology: topology}, r.record)
	options := load.WriterOptions{
		DatabaseURL: w.Database, Table: w.Table, Run: r.state.Run, Seed: *seed,
		Rate: *messages, Writers: 4, KeysPerWriter: 5, Topology: topology,
	}
	w.Poison = func(ctx context.Context, bytes int) error { return load.Poison(ctx, options, bytes, r.record) }
	r.writers, err = load.StartWriters(ctx, options, r.record)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// awaitDelivered waits until this many messages have arrived.
func (r *testRun) awaitDelivered(n int) {
	r.t.Helper()
	timeout := await.Hang()
	ctx, cancel := context.WithTimeout(r.t.Context(), timeout)
	defer cancel()
	err := poll(ctx, func() (bool, error) { return r.record.Counts().Delivered >= n, nil })
	if err != nil {
		r.t.Errorf("%d messages have arrived within %s, expected %d; %v; %v", r.record.Counts().Delivered, timeout, n,
			r.writers.Trouble.Seen(), r.consumers.Trouble.Seen())
	}
}

// drainLimit is how long the last rows may take to leave the outbox after the writers stop: rejected ones are tried
// seven more times in nine seconds, and some are scheduled for a few seconds later. The server ends the claim of a
// frozen relay after ten seconds.
const drainLimit = 25 * time.Second

// end stops the load, waits until everything has left the outbox, and fails the test if the checker finds a violation.
func (r *testRun) end() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), await.Hang())
	defer cancel()
	r.writers.Stop()
	began := time.Now()
	drained := r.state.AwaitDrained(ctx, time.Minute, nil)
	if took := time.Since(began); took > drainLimit {
		r.t.Errorf("the outbox took %s to empty, expected %s at most", took.Round(time.Second), drainLimit)
	}
	if drained == nil {
		drained = load.AwaitEmptyQueues(ctx, r.world.Broker, r.topology)
	}
	if drained != nil {
		r.t.Error(drained)
	}
	if err := r.world.Stop(ctx); err != nil {
		r.t.Error(err)
	}
	r.consumers.Stop()
	if err := r.state.Record(ctx, r.record); err != nil {
		r.t.Error(err)
	}
	if err := r.record.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.judge()
}

func (r *testRun) judge() {
	r.t.Helper()
	defer func() { _ = r.file.Close() }()
	if _, err := r.file.Seek(0, 0); err != nil {
		r.t.Fatal(err)
	}
	verdict, err := history.Check(r.file)
	if err != nil {
		r.t.Fatal(err)
	}
	if !verdict.Passed() {
		r.t.Errorf("%s %s", verdict.Result, verdict.Incomplete)
	}
	for _, violation := range verdict.Violations {
		r.t.Errorf("%s, %d times: %v", violation.Code, violation.Count, violation.First)
	}
	r.t.Logf("%+v", verdict.Counters)
	for _, fault := range verdict.Faults {
		r.t.Logf("%+v; longest gap elsewhere %s", fault, verdict.Delivery.LongestGap)
	}
}
