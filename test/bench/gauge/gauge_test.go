package gauge

import (
	"net"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestProcessorTimeAndMemoryAreMeasured(t *testing.T) {
	before, _, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	burn(100 * time.Millisecond)
	after, kernel, err := CPU(os.Getpid())
	if err != nil || after-before < 50*time.Millisecond {
		t.Errorf("%s after 100 ms of work, %v", after-before, err)
	}
	little, err := MeasureLittle(os.Getpid())
	if err != nil || little.CPU < after/2 || kernel > after {
		t.Errorf("%s by the finer clock, %s by the other, %s in the kernel, %v", little.CPU, after, kernel, err)
	}
	memory, err := PeakMemory(os.Getpid())
	if err != nil || memory < 1<<20 || memory > 1<<34 {
		t.Errorf("%d bytes of memory, %v", memory, err)
	}
}

// burn uses a processor for this long, measured by the process's own processor time: others may use the processors
// meanwhile.
func burn(least time.Duration) {
	began, _, _ := CPU(os.Getpid())
	for {
		for range 1_000_000 {
			_ = os.Getpid
		}
		if now, _, err := CPU(os.Getpid()); err != nil || now-began >= least {
			return
		}
	}
}

// It includes children that have ended, and running ones.
func TestATreeIncludesItsChildren(t *testing.T) {
	const work = `i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; `
	// The parent only waits, so all processor time is its children's.
	parent := exec.Command("sh", "-c", `sh -c "$0"; sh -c "$0 echo done; read -r _"; true`, work)
	input, err := parent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = input.Close()
		_ = parent.Wait()
	}()
	if _, err := output.Read(make([]byte, 1)); err != nil { // the second child has worked, and waits
		t.Fatal(err)
	}
	all, err := TreeCPU(parent.Process.Pid, nil)
	own, _, err2 := CPU(parent.Process.Pid)
	if err != nil || err2 != nil || all-own < 2*tick {
		t.Errorf("%s in all, %s its own, %v, %v", all, own, err, err2)
	}
	if above, name := Parent(parent.Process.Pid); above != os.Getpid() || name == "" {
		t.Errorf("its parent is %d, %s", above, name)
	}
	if above, _ := Parent(0); above != 0 {
		t.Errorf("the parent of nobody is %d", above)
	}
}

func TestTheListeningProcessIsFound(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	if pid := Listener(addr); pid != os.Getpid() {
		t.Errorf("process %d listens, want %d", pid, os.Getpid())
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	for _, nobody := range []string{addr, "nowhere", "127.0.0.1:http"} {
		if pid := Listener(nobody); pid != 0 {
			t.Errorf("process %d listens at %s", pid, nobody)
		}
	}
}
