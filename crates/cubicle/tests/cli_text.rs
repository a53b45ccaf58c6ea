//! What the command line says: help, mistakes and failures, as the user reads them.

use std::process::{Command, Output, Stdio};

/// Runs the built binary with nothing of the caller's environment, and without a terminal.
fn cubicle(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    #[expect(clippy::disallowed_methods, reason = "a black-box test starts the program that it tests")]
    Command::new(env!("CARGO_BIN_EXE_cubicle"))
        .args(arguments)
        .env_clear()
        .env("HOME", "/nonexistent")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("the built program starts")
}

fn stdout(arguments: &[&str]) -> String {
    let output = cubicle(arguments, &[]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// What a failure prints, with its exit code. Names of temporary directories become `TMP`.
fn failure(arguments: &[&str], environment: &[(&str, &str)], temporary: &str) -> String {
    let output = cubicle(arguments, environment);
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr).expect("text");
    let text = if temporary.is_empty() { text } else { text.replace(temporary, "TMP") };
    format!("{text}exit code {:?}", output.status.code())
}

#[test]
fn help_is_complete_and_has_examples() {
    insta::assert_snapshot!("help", stdout(&["--help"]));
    for command in
        ["run", "exec", "ls", "rm", "receipt", "gc", "doctor", "bench", "completions", "first-run", "up"]
            .into_iter()
            .chain([
                "shell",
                "cp",
                "logs",
                "ps",
                "kill",
                "lease",
                "events",
                "keys",
                "audit",
                "template",
                "tenant",
                "egress",
                "secrets",
                "workspace",
                "skills",
                "mcp",
                "agents",
                "webhooks",
            ])
    {
        insta::assert_snapshot!(format!("help_{command}"), stdout(&[command, "--help"]));
    }
    for (command, below) in [
        ("lease", "create"),
        ("keys", "create"),
        ("audit", "verify"),
        ("template", "put"),
        ("secrets", "set"),
        ("workspace", "put"),
        ("workspace", "get"),
        ("workspace", "ls"),
        ("skills", "create"),
        ("webhooks", "add"),
        ("egress", "bundles"),
        ("egress", "explain"),
        ("egress", "check"),
        ("agents", "install"),
    ] {
        insta::assert_snapshot!(format!("help_{command}_{below}"), stdout(&[command, below, "--help"]));
    }
}

/// `UPDATE=1` writes what has drifted.
#[test]
fn references_are_what_the_program_says() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    for (of, file) in [("cli", "cli.md"), ("config", "config.md")] {
        let (path, now) = (directory.join(file), stdout(&["reference", of]));
        #[expect(clippy::disallowed_methods, reason = "whoever runs the test says so")]
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(&path, &now).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == now, "{} has drifted: run this test with UPDATE=1", path.display());
    }
}

#[test]
fn mistakes_on_the_command_line_get_a_suggestion() {
    let table: [(&str, &[&str]); 23] = [
        ("unknown_flag", &["run", "--memroy", "1G", "--", "true"]),
        ("unknown_command", &["rum", "--", "true"]),
        ("no_command", &["run"]),
        ("empty_command", &["run", "--", ""]),
        ("bad_time", &["run", "--timeout", "soon", "--", "true"]),
        ("zero_time", &["run", "--timeout", "0", "--", "true"]),
        ("bad_size", &["run", "--memory", "lots", "--", "true"]),
        ("small_memory", &["run", "--memory", "4k", "--", "true"]),
        ("bad_cores", &["run", "--cpus", "0", "--", "true"]),
        ("bad_variable", &["run", "--env", "=x", "--", "true"]),
        ("bad_file", &["run", "--file", "main.py", "--", "true"]),
        ("bad_isolation", &["run", "--isolation", "vm", "--", "true"]),
        ("too_weak", &["run", "--isolation", "landlock", "--", "true"]),
        ("bad_id", &["rm", "sbx-1"]),
        ("exec_without_dashes", &["exec", "ls", "-l"]),
        ("unknown_lease_command", &["lease", "creat"]),
        ("bad_scope", &["keys", "create", "ci", "--scopes", "reed"]),
        ("bad_address", &["ps", "--server", "localhost:7878"]),
        ("bad_exec_id", &["logs", "sbx-1"]),
        ("secret_without_form", &["secrets", "set", "KEY", "--to", "api.example"]),
        ("bad_form", &["secrets", "set", "KEY", "--to", "api.example", "--as", "cookie"]),
        ("no_value", &["secrets", "set", "KEY", "--to", "api.example", "--as", "bearer"]),
        ("tty_and_json", &["run", "--tty", "--json", "--", "true"]),
    ];
    for (name, arguments) in table {
        insta::assert_snapshot!(format!("mistake_{name}"), failure(arguments, &[], ""));
    }
}

#[test]
fn mistakes_in_settings_say_where_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let config = format!("{place}/cubicle.toml");
    let table = [
        ("unknown_key", "[limits]\nmemroy = '1G'\n"),
        ("wrong_type", "data_dir = true\n"),
        ("bad_value", "[limits]\ncpus = 'all'\n"),
        ("not_toml", "limits = [\n"),
        ("bad_bundle", "[egress.bundles]\nmine = \"\"\"\nallow a.example\nallow https://b.example?q\"\"\"\n"),
        ("password", "[egress]\npython_index = 'ada:hunter2@index.example'\n"),
    ];
    for (name, toml) in table {
        std::fs::write(&config, toml).unwrap();
        let said = failure(&["ls", "--config", &config], &[], place);
        insta::assert_snapshot!(format!("settings_{name}"), said);
    }
    let said = failure(&["ls", "--config", "/nonexistent/cubicle.toml"], &[], "");
    insta::assert_snapshot!("settings_no_file", said);
    insta::assert_snapshot!(
        "settings_unknown_variable",
        failure(&["ls"], &[("CUBICLE_ISOLATOIN", "gvisor")], "")
    );
    insta::assert_snapshot!("settings_bad_variable", failure(&["ls"], &[("CUBICLE_TRUST", "some")], ""));
}

#[test]
fn a_data_directory_that_cannot_be_used_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let place = file.path().to_str().unwrap();
    let said = failure(&["ls", "--data-dir", &format!("{place}/data")], &[], place);
    insta::assert_snapshot!("data_directory_unusable", said);
}

#[test]
fn files_that_cannot_be_put_in_are_named_before_anything_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let table = [
        ("absent", vec!["run".to_owned(), "--file".into(), format!("{place}/no:/workspace/no")]),
        ("directory", vec!["run".to_owned(), "--file".into(), format!("{place}:/workspace/dir")]),
        ("no_workspace", vec!["run".to_owned(), "--workspace".into(), format!("{place}/no")]),
    ];
    for (name, mut arguments) in table {
        arguments.extend(["--".into(), "true".into()]);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        insta::assert_snapshot!(format!("files_{name}"), failure(&arguments, &[], place));
    }
}

#[test]
fn a_failure_is_json_where_json_was_asked_for() {
    let output =
        cubicle(&["run", "--json", "--trust", "low", "--isolation", "namespaces", "--", "true"], &[]);
    assert_eq!(output.status.code(), Some(125));
    assert!(output.stderr.is_empty(), "{output:?}");
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["error"]["code"], "denied");
    assert!(value["error"]["hint"].as_str().is_some_and(|hint| hint.contains("--trust")), "{value}");
}

#[test]
fn flags_of_the_command_are_not_taken_for_cubicles() {
    let output =
        cubicle(&["run", "--trust", "low", "--isolation", "namespaces", "ls", "--memroy", "-l"], &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("too weak for low trust"), "{said}");
}

/// What a command prints, on both streams, with its exit code.
fn everything(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let output = cubicle(arguments, environment);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    format!("{}{}exit code {:?}", text(output.stdout), text(output.stderr), output.status.code())
}

#[test]
fn egress_is_explained_with_the_rule_and_a_way_out() {
    let policy = "allow @git; allow GET https://api.example/v1/**; inspect api.example; allow tcp://db.example:5432; deny gitlab.com";
    let urls = [
        "https://github.com/rust-lang/rust",
        "https://gitlab.com/",
        "https://api.example/v1/items",
        "https://api.example/v2/items",
        "tcp://db.example:5432",
        "http://169.254.169.254/latest/meta-data/",
        "elsewhere.example:443",
    ];
    let explain =
        |more: &[&str]| everything(&[&["egress", "explain", "--policy", policy], more].concat(), &[]);
    insta::assert_snapshot!("egress_explain", explain(&urls));
    insta::assert_snapshot!("egress_explain_json", explain(&["--json", urls[0], urls[1]]));
    insta::assert_snapshot!("egress_explain_allowed", explain(&[urls[0]]));
    let mistakes: [(&str, &[&str]); 6] = [
        ("syntax", &["--policy", "allow a.example; allow b.example:x", "https://a.example"]),
        ("no_file", &["--policy", "no-such-file.txt", "https://a.example"]),
        ("bundle", &["--policy", "allow @pyhton", "https://a.example"]),
        ("empty_bundle", &["--policy", "allow @python", "https://a.example"]),
        ("url", &["--policy", "open", "a.example"]),
        ("no_policy", &["https://a.example"]),
    ];
    for (name, arguments) in mistakes {
        let arguments = [&["egress", "explain"], arguments].concat();
        insta::assert_snapshot!(
            format!("egress_mistake_{name}"),
            failure(&arguments, &OWN_CONFIGURATION, "")
        );
    }
}

#[test]
fn a_policy_in_a_file_is_checked_with_positions() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let file = format!("{place}/policy.txt");
    let table = [
        ("good", "allowlist  # only this\nallow @git\nallow *.example.org\n"),
        ("syntax", "allowlist\nallow @git\n\nallow https://ada:pw@a.example\n"),
        ("bundle", "allow @nothing\n"),
    ];
    for (name, text) in table {
        std::fs::write(&file, text).unwrap();
        let said = everything(&["egress", "check", &file], &[]).replace(place, "TMP");
        insta::assert_snapshot!(format!("egress_check_{name}"), said);
    }
    let said = everything(&["egress", "check", "/nonexistent/policy.txt"], &[]);
    insta::assert_snapshot!("egress_check_no_file", said);
}

/// Clients of package indexes are configured by their variables alone, and not by files of this host.
const OWN_CONFIGURATION: [(&str, &str); 3] =
    [("PIP_CONFIG_FILE", "/dev/null"), ("UV_NO_CONFIG", "1"), ("NPM_CONFIG_GLOBALCONFIG", "/nonexistent")];

#[test]
fn bundles_are_shown_with_where_they_come_from_and_without_passwords() {
    let [pip, uv, npm] = OWN_CONFIGURATION;
    let environment = [
        pip,
        uv,
        npm,
        ("PIP_INDEX_URL", "http://ada:hunter2@127.0.0.1:3141/root/simple"),
        ("NPM_CONFIG_REGISTRY", "https://[fd00::1]:8443/"),
    ];
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("cubicle.toml");
    std::fs::write(&config, "[egress.bundles]\ndebian = ''\nmine = 'allow a.example'\n").unwrap();
    let config = config.to_str().unwrap();
    insta::assert_snapshot!(
        "egress_bundles",
        everything(&["egress", "bundles", "--config", config], &environment)
    );
    let json = everything(&["egress", "bundles", "--json", "--config", config], &environment);
    insta::assert_snapshot!("egress_bundles_json", json);
}

#[test]
fn colours_are_only_for_terminals() {
    for arguments in [&["run", "--memroy", "--", "true"][..], &["rm", "sbx-1"], &["--help"]] {
        let output = cubicle(arguments, &[]);
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{output:?}");
    }
}

#[test]
fn every_shell_gets_a_completion_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(stdout(&["completions", shell]).contains("first-run"), "{shell}");
    }
}
