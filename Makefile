# A short front for Meson: every target first makes sure that the packages it needs are there (tools/setup).
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 3600
JOBS ?= $(shell nproc)

.PHONY: all demo test check test-all test-slurm test-condor fuzz bench install format tidy clean help

all: ## build build/trainera (the default)
	@tools/setup build check
	@test -f build/build.ninja || meson setup build >build.log 2>&1 || { cat build.log; rm -f build.log; exit 1; }
	@rm -f build.log
	@ninja -C build -j $(JOBS)

demo: all ## a convnet learns handwritten digits on a local cluster: 1 ps + 2 workers, under a minute
	@tools/demo

check: ## the unit tests: under a minute, no TensorFlow
	@tools/setup build check
	@tools/run-tests unit

test: ## everything that must pass: unit, sanitizers, fuzzers 20 s each, the real TensorFlow
	@tools/setup build check fuzz slurm browser
	@tools/run-tests unit cluster slurm asan tsan fuzz interop interop-2.21 interop-1.15 interop-asan parity programs ops parity-asan

test-all: ## the same and more of it: slow tests, all interop tests under ASan, fuzzers 5 minutes each
	@tools/setup build check fuzz slurm browser
	@tools/run-tests --slow --fuzz-seconds 300 unit cluster slurm asan tsan fuzz interop interop-2.21 interop-1.15 interop-asan parity programs ops parity-asan

test-slurm: ## jobs in a real Slurm that the tests start on this machine (root; installs slurm-wlm, munge)
	@tools/setup build check slurm
	@tools/run-tests slurm

test-condor: ## jobs in a real HTCondor, by ssh and as pods, in a Debian 13 that is made once with debootstrap (root)
	@tools/setup build check condor
	@tools/run-tests condor

fuzz: ## the fuzzers only, FUZZ_SECONDS=3600 each
	@tools/setup build check fuzz
	@tools/run-tests --fuzz-seconds $(FUZZ_SECONDS) fuzz

bench: all ## measure against TensorFlow; writes bench/RESULTS.md
	@bench/run

install: all ## binary, library, headers, pkg-config file under PREFIX=/usr/local (and DESTDIR)
	@meson configure build -Dprefix=$(abspath $(PREFIX)) -Dlibdir=lib
	@meson install -C build --quiet
	@echo "installed under $(DESTDIR)$(abspath $(PREFIX))"

format: ## clang-format what this branch changed
	@tools/setup dev
	@git clang-format -q main 2>/dev/null || git ls-files '*.c' '*.h' | xargs clang-format -i

tidy: all ## clang-tidy over the sources
	@tools/setup dev
	@git ls-files 'src/*.c' | xargs -P $(JOBS) -n 4 clang-tidy --quiet -p build

clean: ## remove everything that was built (not the Python environment)
	rm -rf build build-asan build-tsan build-fuzz

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
