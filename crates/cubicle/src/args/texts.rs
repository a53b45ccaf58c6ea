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

pub(super) const UP: &str = "\
Examples:
  cubicle up
  cubicle up --listen 127.0.0.1:9000 --pool-size 16
  POOL_SIZE=16 LEASE_TTL_SECONDS=120 DB_URL=postgres://cubicle@db/cubicle cubicle up

The first start makes a key for you; its file is named when the server is up. A signal stops the server when it has \
finished what is under way; sandboxes and what runs in them go on, and the next start takes them over. A second signal \
ends it at once.";

pub(super) const AGENTS: &str = "\
Examples:
  cubicle agents install claude                  # the version that was tried with this release
  cubicle agents install gemini --version 0.61.0
  cubicle agents install claude --from package.tgz
  cubicle agents list

An agent is kept in the data directory, named by its contents, and seen read-only by sandboxes of workers. Nothing of it is \
run on this host. Its licence is between you and its maker.";

pub(super) const MCP: &str = "\
Examples:
  cubicle mcp                             # a sandbox of this machine, which ends with the client
  cubicle mcp --workspace .               # with this directory as its /workspace
  cubicle mcp --server http://host:7878   # sandboxes of a server

  claude mcp add cubicle -- cubicle mcp   # tell Claude Code of it; docs/guide/mcp.md has others

A server is used where --server, CUBICLE_SERVER or cubicle.toml names one. The sandbox is destroyed when standard input is \
closed, and on a signal.";

pub(super) const TOP: &str = "\
Examples:
  cubicle run -- python3 -c 'print(6 * 7)'   # a program in its own sandbox, without a server
  cubicle doctor                             # what this host can do, and how to fix the rest
  cubicle up                                 # a server: leases, ready sandboxes, an HTTP API
  cubicle exec -- python3 -c 'print(6 * 7)'  # a program in a sandbox of the server
  cubicle shell                              # a shell in one

Settings come from flags, then from variables (CUBICLE_DATA_DIR, CUBICLE_SERVER, CUBICLE_KEY, CUBICLE_TRUST, \
CUBICLE_MEMORY, …), then from cubicle.toml: the file that --config or CUBICLE_CONFIG names, else \
~/.config/cubicle/cubicle.toml (not as root), else /etc/cubicle/cubicle.toml. docs/reference/config.md lists all.

'cubicle run' and 'cubicle exec' return what the command returned; a failure of cubicle itself is 125.";

pub(super) const EXEC_EXAMPLES: &str = "\
Examples:
  cubicle exec -- python3 -c 'print(6 * 7)'       # in a sandbox of its own
  cubicle exec lease-… -- make test               # in a sandbox that you leased
  cubicle exec --timeout 10s --env CI=1 -- make   # with a limit and a variable
  tar c src | cubicle exec sbx-… -- tar x         # input is passed on when it is not a terminal
  cubicle exec --detach -- ./train.sh             # prints an id for logs, ps and kill";

pub(super) const SHELL: &str = "\
Examples:
  cubicle shell                      # in a sandbox of its own, which ends with the shell
  cubicle shell lease-…              # in a sandbox that you leased
  cubicle shell sbx-… -c 'python3'   # another program than a shell

Ctrl-C and every other key go to what runs inside. The exit code is that of the shell.";

pub(super) const CP: &str = "\
Examples:
  cubicle cp main.py sbx-…:/workspace/        # a file
  cubicle cp src lease-…:/workspace/src       # a directory
  cubicle cp sbx-…:/workspace/out.csv .       # and back
  cubicle cp sbx-…:result.json - | jq .       # relative paths are in /workspace

A directory goes into one that is there already, and becomes one that is not, as with cp -r.";

pub(super) const LOGS: &str = "\
Examples:
  cubicle logs exec-…      # what it has printed so far
  cubicle logs -f exec-…   # and what it prints until it has ended

Output stays readable after the sandbox has gone, for as long as the server keeps it (48 hours).";

pub(super) const KILL: &str = "\
Examples:
  cubicle kill exec-…                 # TERM, a grace, KILL, to the whole tree
  cubicle kill --signal INT exec-…
  cubicle kill lease-…                # the same as 'cubicle lease release'";

pub(super) const LEASE: &str = "\
Examples:
  lease=$(cubicle lease create --quiet --ttl 10m)
  cubicle exec $lease -- make test
  cubicle lease release $lease";

pub(super) const LEASE_CREATE: &str = "\
Examples:
  cubicle lease create
  cubicle lease create --ttl 1h --memory 2G --env CI=1 --file main.py:main.py
  cubicle lease create --json | jq -r .sandbox_id

A lease ends when its time is over without a heartbeat. 'cubicle exec', 'cubicle shell' and 'cubicle lease heartbeat' \
renew it.";

pub(super) const KEYS_CREATE: &str = "\
Examples:
  cubicle keys create ci                                  # may read and run
  cubicle keys create nightly --scopes read --expires-in 30d
  CUBICLE_KEY=$(cubicle keys create me) cubicle ps

The secret is on stdout, everything else on stderr. A key never may more than the key that makes it.";

pub(super) const AUDIT: &str = "\
Examples:
  cubicle audit ls --action exec.create --since 2026-01-31T00:00:00Z
  cubicle audit heads > heads.json; cubicle audit verify --head heads.json
  cubicle audit export > audit.ndjson";

pub(super) const AUDIT_VERIFY: &str = "\
Exit codes: 0 when every chain is whole, 1 when an entry is missing or was changed, 125 when that cannot be told.

Without --head, an entry that was removed from the end of a log is not noticed, nor a log that was written anew.";

pub(super) const EVENTS: &str = "\
Examples:
  cubicle events                      # all that are kept
  cubicle events -f --subject lease-…";

pub(super) const TEMPLATE_PUT: &str = "\
Examples:
  cubicle template put python python.toml
  echo '{\"limits\": {\"memory\": 1073741824}, \"pool\": {\"size\": 2}}' | cubicle template put big -";

pub(super) const SECRETS_SET: &str = "\
Examples:
  cubicle secrets set ANTHROPIC_API_KEY < key.txt           # a provider's variable goes to that provider
  cubicle secrets set GITHUB --to api.github.com --as bearer    # asks for the value, and does not show it
  cubicle secrets set WIKI --to wiki.example:8443 --as header:x-api-key --base wiki --template python
  cubicle secrets set DB --from-file /run/secrets/db        # read by the server whenever it is needed

The value comes from standard input, without the end of its last line. Without --to a secret keeps where it goes. Sandboxes \
never get the value: the gateway adds it to requests on their way out, and running sandboxes use a new value at once.";

pub(super) const WEBHOOKS: &str = "\
Examples:
  cubicle webhooks add https://assistant.example.org/hooks/cubicle
  cubicle webhooks deliveries --state dead
  cubicle webhooks replay dlv-…";

pub(super) const WEBHOOKS_ADD: &str = "\
Examples:
  cubicle webhooks add https://assistant.example.org/hooks/cubicle > webhook.secret
  cubicle webhooks add --description 'the family assistant' http://assistant.lan:8000/api/webhooks/worker-complete

Receivers in private networks and on the server's own host must be named in 'webhooks.allow' by its operator. Deliveries \
are signed as Standard Webhooks are, and by X-Webhook-Signature.";

pub(super) const TENANT_CREATE: &str = "\
Examples:
  cubicle tenant create acme --leases 20 --memory 16G
  cubicle keys create acme-admin --tenant acme --user ada --scopes read,run,manage";

pub(super) const EGRESS: &str = "\
Examples:
  cubicle egress bundles                                # what @python, @git and the others stand for here
  cubicle egress explain --policy policy.txt https://example.org/
  cubicle egress check policy.txt";

pub(super) const EGRESS_EXPLAIN: &str = "\
Examples:
  cubicle egress explain --policy 'allow @git; deny gitlab.com' https://gitlab.com/
  cubicle egress explain --policy policy.txt --method POST http://api.example.org/v1/items
  cubicle egress explain --policy - --resolve tcp://db.example.org:5432 < policy.txt
  cubicle egress explain --template task https://example.org/

Exit codes: 0 when all of it is allowed, 3 when something is denied, 125 when that cannot be told.

Nothing is sent and, without --resolve, no name is asked for: the gateway decides again by the address when something \
connects.";

pub(super) const EGRESS_SHOW: &str = "\
Examples:
  cubicle egress show lease-…
  cubicle egress show lease-… --json | jq -r .policy";

pub(super) const EGRESS_SET: &str = "\
Examples:
  cubicle egress set lease-… --policy 'allow @python; allow https://api.example.org'
  cubicle egress set lease-… --policy policy.txt
  cubicle egress set lease-…                       # back to its template's

It holds when the command has ended: what it denies is closed. A policy that cannot be read changes nothing.";

pub(super) const EGRESS_BILL: &str = "\
Examples:
  cubicle egress bill lease-…
  cubicle egress bill exec-… --csv > bill.csv

Execs that run in one sandbox at the same time share its network, and each other's lines.";

pub(super) const EGRESS_RECORD: &str = "\
Examples:
  cubicle egress record -- pip install requests
  cubicle egress record --output policy.txt --egress 'deny telemetry.example.org' -- npm ci

Addresses that lead inwards stay refused unless a rule names them. The exit code is that of the command.";

pub(super) const EGRESS_CHECK: &str = "\
Examples:
  cubicle egress check policy.txt
  echo 'allow @python; allow *.example.org' | cubicle egress check -

Exit codes: 0 when the policy can be used here, 1 when it cannot, 125 when it cannot be read.";

pub(super) const WORKSPACE: &str = "\
Examples:
  cubicle workspace put spending.csv data/
  cubicle workspace ls --recursive
  cubicle workspace get data/spending.csv | head";

pub(super) const WORKSPACE_PUT: &str = "\
Examples:
  cubicle workspace put spending.csv data/              # becomes data/spending.csv
  cubicle workspace put ./charts skills/charts          # a directory with everything in it
  date | cubicle workspace put - data/now.txt

A file is replaced in one step, and its last ten versions are kept.";

pub(super) const WORKSPACE_GET: &str = "\
Examples:
  cubicle workspace get data/spending.csv               # to standard output
  cubicle workspace get data/spending.csv .
  cubicle workspace get data/spending.csv old.csv --version 3";

pub(super) const WORKSPACE_HISTORY: &str = "\
Examples:
  cubicle workspace history data/spending.csv
  cubicle workspace get data/spending.csv --version 3 | cubicle workspace put - data/spending.csv";

pub(super) const SKILLS_CREATE: &str = "\
Examples:
  cubicle skills create charts --description 'Draws charts. Use for tables of numbers.' < charts.md
  cubicle skills create charts --description '…' --content charts.md --file chart.py:scripts/chart.py";
