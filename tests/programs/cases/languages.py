"""Compilers and runtimes."""

import json

from cases.web import PORTS
from runner.program import Program


class Go(Program):
    name, title = "go", "Go"
    packages = ("golang-go",)
    # Fewer than any machine of the tests has.
    memory, cpus = 2048, 1
    version = "go version | awk '{print $3}' | sed 's/go//'"
    note = "a `net/http` server, seen from outside; `GOMAXPROCS` is the number of the sandbox's CPUs"

    def use(self, box, account):
        port = PORTS[account]
        box.write("go-server/main.go", GO, account)
        box.sh("cd go-server; go mod init example.com/server 2>/dev/null; go vet; go build -o server", account, 600)
        box.start(f"cd go-server && ./server {port}", account)
        answer = json.loads(box.get(port, "/sum"))
        assert answer == {"sum": 499500, "threads": self.cpus} and int(box.sh("nproc")) == self.cpus, answer


GO = """package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
)

func sum(w http.ResponseWriter, _ *http.Request) {
	var total int64
	var group sync.WaitGroup
	for i := 0; i < 1000; i++ {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			atomic.AddInt64(&total, int64(n))
		}(i)
	}
	group.Wait()
	fmt.Fprintf(w, `{"sum": %d, "threads": %d}`, total, runtime.GOMAXPROCS(0))
}

func main() {
	http.HandleFunc("/sum", sum)
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
"""


class Rust(Program):
    name, title = "rust", "Rust"
    packages = ("rustc", "cargo", "gcc", "libc6-dev")
    version = "rustc --version | awk '{print $2}'"
    note = "`cargo test` and `cargo build`"

    def use(self, box, account):
        box.sh("cargo new -q hello", account)
        box.write("hello/src/main.rs", RUST, account)
        box.sh("cd hello; cargo test -q --offline; cargo build -q --offline --release", account, 600)
        assert box.sh("hello/target/release/hello", account) == "hello from 8 threads: 499500\n"


RUST = """
fn sum(threads: u64) -> u64 {
    let parts: Vec<_> = (0..threads)
        .map(|part| std::thread::spawn(move || (0..1000u64).filter(|n| n % threads == part).sum::<u64>()))
        .collect();
    parts.into_iter().map(|part| part.join().unwrap()).sum()
}

fn main() {
    println!("hello from 8 threads: {}", sum(8));
}

#[test]
fn threads_do_not_change_the_sum() {
    assert_eq!(sum(1), sum(7));
}
"""


class Java(Program):
    name, title = "java", "Java"
    packages = ("default-jdk-headless",)
    memory = 1024
    version = "java -version 2>&1 | head -1 | cut -d'\"' -f2"
    note = "in 1 GiB, without options: the heap's limit is a part of it, and a program that fills the heap catches the error and goes on"

    def use(self, box, account):
        limit = int(box.sh("cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || true", account).split()[0])
        box.write("Main.java", JAVA, account)
        processors, heap, total = map(int, box.sh("javac Main.java; java -cp . Main", account).split())
        flags = box.sh("java -XX:+PrintFlagsFinal -version 2>/dev/null | awk '$2 == \"MaxHeapSize\" {print $4}'", account)
        assert limit == self.memory << 20 and 0 < heap < limit and 0 < int(flags) < limit, (limit, heap, flags)
        assert (processors, total) == (int(box.sh("nproc")), 499500)
        box.write("Fill.java", FILL, account)
        # If the kernel killed it, it would end with 137.
        blocks = int(box.sh("javac Fill.java; java -cp . Fill", account))
        assert heap // 4 < blocks << 20 < limit, (blocks, heap, limit)


JAVA = """
import java.util.concurrent.*;
import java.util.stream.*;

public class Main {
    public static void main(String[] words) throws Exception {
        var pool = Executors.newFixedThreadPool(8);
        var parts = IntStream.range(0, 1000).mapToObj(n -> pool.submit(() -> n)).collect(Collectors.toList());
        int total = 0;
        for (var part : parts) total += part.get();
        pool.shutdown();
        System.out.println(Runtime.getRuntime().availableProcessors() + " " + Runtime.getRuntime().maxMemory() + " " + total);
    }
}
"""

FILL = """
import java.util.ArrayList;

public class Fill {
    public static void main(String[] words) {
        var blocks = new ArrayList<byte[]>();
        try {
            while (true) blocks.add(new byte[1 << 20]);
        } catch (OutOfMemoryError full) {
            int count = blocks.size();
            blocks.clear();
            System.out.println(count);
        }
    }
}
"""


class Multiprocessing(Program):
    name, title = "multiprocessing", "Python `multiprocessing`"
    version = "python3 --version | awk '{print $2}'"
    note = "pool, shared memory, semaphores, queues and managers, with `fork`, `spawn` and `forkserver`"

    def use(self, box, account):
        box.write("parallel.py", MULTIPROCESSING, account)
        lines = box.sh("python3 parallel.py", account).splitlines()
        assert lines == [f"{method} 499500 8 8 [0, 1, 4, 9] done" for method in ("fork", "spawn", "forkserver")], lines


MULTIPROCESSING = """
import multiprocessing
from multiprocessing import shared_memory


def square(number):
    return number * number


def work(name, semaphore, counter, queue, listed):
    shared = shared_memory.SharedMemory(name)
    with semaphore:
        shared.buf[0] += 1
    with counter.get_lock():
        counter.value += 1
    queue.put("done")
    listed.append(1)
    shared.close()


def main():
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(4) as pool:
            total, squares = sum(pool.map(int, range(1000))), pool.map(square, range(4))
        shared = shared_memory.SharedMemory(create=True, size=1 << 20)
        shared.buf[0] = 0
        with context.Manager() as manager:
            queue, listed, counter = context.Queue(), manager.list(), context.Value("i", 0)
            words = (shared.name, context.Semaphore(1), counter, queue, listed)
            workers = [context.Process(target=work, args=words) for _ in range(8)]
            for worker in workers:
                worker.start()
            told = {queue.get(timeout=60) for _ in workers}
            for worker in workers:
                worker.join()
            assert len(listed) == 8
        print(method, total, shared.buf[0], counter.value, squares, *told, flush=True)
        shared.close()
        shared.unlink()


if __name__ == "__main__":
    main()
"""
