# The doors to everything around the code. Each target installs the Debian packages that it needs (tools/setup says
# which and why), so that `make demo` and `make test` work on a bare Debian 12 with Rust.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: python-wheel python-test bench-python help setup build demo test system web page kernel-nbd posix xfstests e2e soak bench bench-adaptive bench-codecs bench-space peers paper-sandforce paper-zbd paper-blobseer paper-zfs bench-blobs bench-get bench-shares fuzz lint completions man deb deb-test install uninstall clean paper-sun bench-appliance bench-doors bench-guests

# Under sudo, rustup's cargo is in the home of the user who called it, and sudo's secure_path hides it. What root builds in that
# user's checkout is given back to the user, so that the next `make build` without sudo can go on.
CALLER_HOME := $(if $(SUDO_USER),$(shell getent passwd '$(SUDO_USER)' | cut -d: -f6))
ifneq ($(wildcard $(CALLER_HOME)/.cargo/bin/cargo),)
ifneq ($(CALLER_HOME),)
export PATH := $(CALLER_HOME)/.cargo/bin:$(PATH)
export RUSTUP_HOME ?= $(CALLER_HOME)/.rustup
endif
else
# As root without sudo, or from a shell that has not read rustup's settings.
export PATH := $(PATH):$(HOME)/.cargo/bin
endif
GIVE_BACK = $(if $(and $(SUDO_UID),$(SUDO_GID)),chown -R '$(SUDO_UID):$(SUDO_GID)' target,true)

PREFIX ?= /usr/local
DESTDIR ?=
SHARE = $(DESTDIR)$(PREFIX)/share
# How long `make soak` runs, and what each fuzz target gets in `make fuzz`.
SECONDS_SOAK := $(if $(filter-out undefined environment,$(origin SECONDS)),$(SECONDS),600)
FUZZ_SECONDS ?= 60
# Directory with the benchmark data; made from public Debian packages when not given.
CORPUS ?=
# Tree of many small files for `make bench-adaptive`: a Linux kernel's, downloaded when it is not there.
TREE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/shale-demo/linux
# More arguments for the demo, the benchmark, the system tests: make demo ARGS=--keep
ARGS ?=

help: ## Show this list
	@echo 'Shale: make storage hold two to four times more. Targets:'
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what building, testing and the demo need
	tools/setup build lint test demo

build: ## Build the binary: target/release/shale
	@tools/setup build
	cargo build --release --locked --package shale
	@$(GIVE_BACK)

demo: build ## A compressed volume with ext4 on it, a kernel tree and a disk image in it, kill -9, and what it saved
	@tools/setup demo
	demo/run $(ARGS)

test: ## The gate: format, lints, layers, licences, all tests, crash simulation, canaries, real clients
	@tools/setup build lint
	tools/gate $(ARGS); status=$$?; $(GIVE_BACK); exit $$status

system: build ## Only the system tests (real binary, real clients); ARGS='--only REGEX' selects
	@tools/setup test
	tests/run $(ARGS)

web: ## Build the page (web/) into crates/fe-http/assets, which is committed; needs npm and node 20.19 or later
	tools/web

page: ## Test the page in Chromium on a pool in memory, and on one that a build of the program serves; ARGS='--only REGEX' selects
	@tools/setup page
	tests/page/run $(ARGS)
	tests/page/served $(ARGS)

kernel-nbd: build ## The kernel's own NBD client: file systems, trim, kill -9, growing (needs the nbd module and nbd-client)
	tests/kernel-nbd target/release/shale

posix: ## pjdfstest, whole, on a share and on ext4, and fsx for SECONDS=120 (installs both: minutes)
	@tools/setup build posix
	tests/posix $(if $(filter-out undefined environment,$(origin SECONDS)),$(SECONDS),120)

xfstests: build ## The quick generic tests of xfstests on shares of served pools (downloads and builds the suite; half an hour); ARGS=generic/013 selects
	@tools/setup build posix
	tests/xfstests $(ARGS)

e2e: build ## Every door with its real clients: machines with disks by vhost-user, NBD and ublk, shares by NFS, SMB and FTP, blobs on MinIO, SeaweedFS, Ceph and azurite; it installs all of them (needs Go, npm and root; hours without KVM); ARGS='--only ublk' selects
	@tools/setup test e2e
	SHALE_E2E=1 tests/run --jobs 1 $(if $(ARGS),$(ARGS),--only '^e2e_')

soak: build ## Crash simulation and fuzzing for SECONDS=600, a page open on a pool under load, 50 kill -9 rounds, a full pool overwritten 20 times
	@tools/setup build soak
	tools/soak $(SECONDS_SOAK)

bench: build ## Measure the engine and the transports; writes bench/results/latest.json (CORPUS=DIR, ARGS=--quick)
	@tools/setup build bench
	corpus=$$(tools/bench-corpus '$(CORPUS)') && for what in engine transport; do \
	    cargo run --release --locked --package bench -- $$what --corpus "$$corpus" $(ARGS) || exit; done
	tools/performance-table

bench-space: build ## Measure a full and old log, snapshots and clones; writes bench/results/space.json (CORPUS=DIR, ARGS=--quick)
	@tools/setup build bench
	corpus=$$(tools/bench-corpus '$(CORPUS)') && \
	    cargo run --release --locked --package bench -- space --corpus "$$corpus" --out bench/results/space.json $(ARGS)
	tools/performance-table

bench-shares: build ## Measure shares against ext4 and btrfs on the same disk, with FUSE messages for each operation (QUICK=1: minutes)
	@tools/setup build shares
	tools/bench-shares $(if $(QUICK),--quick) --page docs/PERFORMANCE.md --out bench/results/shares.json $(ARGS)

bench-adaptive: build ## Measure compression=auto against fixed codecs and the oracle; bench/results/adaptive.json, plots beside it (CORPUS=DIR, TREE=DIR, ARGS=--quick)
	@tools/setup build bench
	mkdir -p '$(dir $(TREE))' && tools/public-data kernel '$(TREE)'
	corpus=$$(tools/bench-corpus '$(CORPUS)') && \
	    cargo run --release --locked --package bench -- adaptive --corpus "$$corpus" --tree '$(TREE)' --out bench/results/adaptive.json $(ARGS)
	tools/performance-table

bench-codecs: build ## Every codec by kind of data, dictionaries, estimates; fills docs/CODECS.md (CORPUS=DIR, ARGS=--quick)
	@tools/setup build bench
	corpus=$$(tools/bench-corpus '$(CORPUS)') && \
	    cargo run --release --locked --package bench -- codecs --corpus "$$corpus" --page docs/CODECS.md $(ARGS) && \
	    cargo run --release --locked --package bench -- estimate --corpus "$$corpus" --out bench/results/adaptive.json $(ARGS)
	tools/performance-table

peers: build ## Measure against btrfs, nbdkit and qcow2 on the same disk (CORPUS=DIR, ARGS=--quick)
	@tools/setup build bench
	corpus=$$(tools/bench-corpus '$(CORPUS)') && \
	    tools/with-fuse-rings --or-without cargo run --release --locked --package bench -- peers --corpus "$$corpus" $(ARGS)
	tools/performance-table

# QUICK=1 makes a run of minutes, which goes to target/papers.
paper-sandforce: build ## Throughput and wear by how compressible data is, as in the SandForce article; papers/sandforce (QUICK=1: minutes)
	@tools/setup build paper
	tools/paper/sandforce $(ARGS)

paper-zbd: build ## Mail, file server, TPC-C and TPC-H on Shale and natively, as in the ZBD paper; papers/zbd (QUICK=1: minutes; ARGS='--only tpcc')
	@tools/setup build paper
	tools/paper/zbd $(ARGS)

paper-blobseer: build ## Appends, reads and boots of many clients of a blob with each compression, as in the BlobSeer paper; papers/blobseer (QUICK=1: minutes; ARGS='--only boots')
	@tools/setup build paper
	tools/paper/blobseer $(ARGS)

paper-zfs: build ## File sets, codecs, modes, rules and load on shares, as in the thesis on adaptive compression in ZFS; papers/zfs (QUICK=1: minutes; ARGS='--only savings')
	@tools/setup build paper
	tools/paper/zfs $(ARGS)

paper-sun: build ## Ten NFS clients at each compression level, drawn from the server's own history, as on the Sun Storage 7000; papers/sun (QUICK=1: minutes; ARGS='--only page')
	@tools/setup build paper
	tools/paper/sun $(ARGS)

bench-appliance: build ## Measure the cost of history, REST, metrics and page; writes bench/results/appliance.json (ARGS=--quick; make page before: its browser)
	@tools/setup build bench paper
	tools/bench-appliance $(ARGS)
	tools/performance-table

bench-doors: build ## Measure vhost-user-blk against qemu-storage-daemon and NBD, and NBD with TLS; writes bench/results/doors.json (ARGS=--quick)
	@tools/setup build bench
	tools/bench-doors $(ARGS)
	tools/performance-table

bench-guests: build ## Measure volumes in a guest against ublk's null target, btrfs, ZFS and dm-vdo; writes bench/results/guests.json (ARGS=--quick; root)
	@tools/setup build bench uml
	tools/bench-guests $(ARGS)
	tools/performance-table

bench-blobs: build ## Measure blobs against the goals of their design; writes bench/results/blobs.json (ARGS=--quick)
	@tools/setup build bench paper
	tools/bench-blobs $(ARGS)

bench-get: build ## Measure `blob get` beside rclone and aws, in turns (ARGS='--data FILE --rounds 5')
	@tools/setup build bench
	tools/bench-get $(ARGS)

python-wheel: ## The wheel of the Python package: target/python/wheels-release
	@tools/setup build python
	tools/python-test --release --wheel-only

python-test: ## The Python package with pandas, pyarrow, DuckDB, xarray, zarr, Dask and Ray (250 MB to download), and on azurite; ARGS='-- -k NAME' selects
	@tools/setup build python
	tools/python-test $(ARGS)

bench-python: build ## Measure the Python package against s3fs, and Dask against the program; writes bench/results/python.json (ARGS=--quick)
	@tools/setup build python paper
	tools/python-test --release -- -k test_example
	tools/bench-python $(ARGS)

fuzz: ## Each fuzz target for FUZZ_SECONDS=60
	@tools/setup build fuzz
	tools/fuzz $(FUZZ_SECONDS)

lint: ## Only the quick checks of the gate
	@tools/setup build lint
	tools/gate --lint

completions: build ## Shell completions to target/completions
	@mkdir -p target/completions
	target/release/shale completions bash >target/completions/shale.bash
	target/release/shale completions zsh >target/completions/_shale
	target/release/shale completions fish >target/completions/shale.fish
	@$(GIVE_BACK)

man: build ## Manual pages to target/man
	@mkdir -p target/man
	target/release/shale man target/man
	@$(GIVE_BACK)

deb: ## The Debian package with its debug symbols beside it: target/deb (VERSION=0.1.0-1; BINARY=FILE packs that one)
	@tools/setup build deb
	tools/deb $(if $(VERSION),--version '$(VERSION)') $(if $(BINARY),--binary '$(BINARY)')
	@$(GIVE_BACK)

deb-test: ## Install, serve, upgrade with a held mount, remove and purge the package in a clean Debian (root; 100 MB to download)
	@tools/setup build deb deb-test
	tests/deb $(if $(BINARY),--binary '$(BINARY)')

# It never builds: a build as root would need root's toolchain, and leave root's files in target.
install: ## Binary (without line tables), manual pages and completions under PREFIX=/usr/local, after make build
	@test -e target/release/shale || { echo "target/release/shale is not built: run 'make build' first, without sudo" >&2; exit 1; }
	install -D -s -m 755 target/release/shale $(DESTDIR)$(PREFIX)/bin/shale
	install -d $(addprefix $(SHARE)/,man/man1 bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	target/release/shale man $(SHARE)/man/man1
	target/release/shale completions bash >$(SHARE)/bash-completion/completions/shale
	target/release/shale completions zsh >$(SHARE)/zsh/site-functions/_shale
	target/release/shale completions fish >$(SHARE)/fish/vendor_completions.d/shale.fish

uninstall: ## Remove what install put under PREFIX=/usr/local; pools stay
	rm -f $(DESTDIR)$(PREFIX)/bin/shale $(SHARE)/man/man1/shale.1 $(SHARE)/man/man1/shale-*.1
	rm -f $(SHARE)/bash-completion/completions/shale
	rm -f $(SHARE)/zsh/site-functions/_shale
	rm -f $(SHARE)/fish/vendor_completions.d/shale.fish

clean: ## Remove what was built (the demo's and the benchmark's caches stay; they say where they are)
	cargo clean
