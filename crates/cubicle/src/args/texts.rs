//! What help says beside the lists of flags. Paragraphs are single lines here: clap wraps them to the terminal.

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0-123  what the command returned (any code it returns is passed on)
  124    the command ran into its timeout
  125    cubicle itself failed, or the outcome is not known
  126    the command cannot be executed
  127    the command was not found
  128+N  the command was killed by signal N (cubicle dies by the same signal)";

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  cubicle run -- python3 -c 'print(6 * 7)'
  cubicle run --timeout 10s --memory 256M --pids 64 -- ./build.sh
  cubicle run --file main.py:/workspace/main.py -- python3 main.py < input.txt
  cubicle run --workspace . -- make test
  cubicle run --tty -- sh
  cubicle run --keep -- true      # the sandbox stays: cubicle exec ID -- CMD, cubicle rm ID
  cubicle run --json -- uname -a  # one JSON object on stdout";

pub(super) const OUTPUT_NOTE: &str = "\
Output passes through byte for byte, also to a terminal: escape sequences that the command prints reach it, as if \
the command had been run directly. Use --json, or redirect the output, for a command whose output you do not trust. \
With --json, a command killed by signal N gives exit code 128+N.

When the command ends, so does everything it left running in the background, unless the sandbox is kept.";

pub(super) const UP_NOTE: &str = "\
Examples:
  cubicle up
  cubicle up --listen 127.0.0.1:9000 --pool-size 16
  POOL_SIZE=16 LEASE_TTL_SECONDS=120 DB_URL=postgres://cubicle@db/cubicle cubicle up

The first start makes a key for you; its file is named when the server is up. A signal stops the server when it has \
finished what is under way; sandboxes and what runs in them go on, and the next start takes them over. A second signal \
ends it at once.";

pub(super) const TOP_EXAMPLES: &str = "\
Examples:
  cubicle run -- python3 -c 'print(6 * 7)'   # a program in its own sandbox
  cubicle doctor                             # what this host can do, and how to fix the rest
  cubicle run --keep -- true; cubicle ls     # a sandbox that stays

Settings come from flags, then from variables (CUBICLE_DATA_DIR, CUBICLE_ISOLATION, CUBICLE_TRUST, CUBICLE_MEMORY, \
CUBICLE_CPUS, CUBICLE_PIDS, CUBICLE_WORKSPACE_SIZE, CUBICLE_TMP_SIZE, CUBICLE_OPEN_FILES, CUBICLE_WALL_TIME, \
CUBICLE_JOURNAL_SIZE), then from cubicle.toml: the file that --config or CUBICLE_CONFIG names, else \
~/.config/cubicle/cubicle.toml (not as root), else /etc/cubicle/cubicle.toml. Its keys are data_dir, isolation, \
trust, and in [limits] memory, cpus, pids, workspace_size, tmp_size, open_files, wall_time and journal_size.

'cubicle run' and 'cubicle exec' return what the command returned; a failure of cubicle itself is 125.";

