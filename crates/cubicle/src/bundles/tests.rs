use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Mutex;

use super::*;

/// A host that is made up: files below a directory, answers of programs by their first words, addresses by names.
struct Host {
    root: tempfile::TempDir,
    answers: BTreeMap<&'static str, &'static str>,
    addresses: BTreeMap<&'static str, &'static str>,
    asked: Mutex<Vec<String>>,
}

impl Host {
    fn new() -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
            answers: BTreeMap::new(),
            addresses: BTreeMap::new(),
            asked: Mutex::default(),
        }
    }

    fn file(self, path: &str, text: &str) -> Self {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    fn program(mut self, name: &'static str, says: &'static str) -> Self {
        self.answers.insert(name, says);
        self
    }

    fn name(mut self, name: &'static str, address: &'static str) -> Self {
        self.addresses.insert(name, address);
        self
    }

    /// The home directory is below the root, so that one host has all of its files in one place.
    fn find(&self, settings: &Egress, variables: &[(&str, &str)]) -> Found {
        let home = self.root.path().join("home");
        std::fs::create_dir_all(&home).unwrap();
        let home = home.to_str().unwrap();
        let mut environment = BTreeMap::from([("HOME", home)]);
        environment.extend(variables.iter().copied());
        let environment = Environment::from_pairs(environment);
        let resolve = |name: &cubicle_model::egress::HostName| -> Vec<IpAddr> {
            self.addresses.get(name.as_str()).map(|address| address.parse().unwrap()).into_iter().collect()
        };
        let ask = |program: &str, arguments: &[&str]| {
            self.asked.lock().unwrap().push(format!("{program} {}", arguments.first().unwrap()));
            self.answers.get(program).map(|answer| (*answer).to_owned())
        };
        let root = self.root.path().to_owned();
        let resolve = Box::new(resolve);
        find(settings, &Surroundings { environment: &environment, root, resolve, ask: Box::new(ask) })
    }

    fn rules(&self, bundle: &str, settings: &Egress, variables: &[(&str, &str)]) -> Vec<String> {
        let found = self.find(settings, variables);
        found.parsed().expect("what was found can be read");
        get(&found, bundle).rules.lines().map(str::to_owned).collect()
    }
}

fn get<'a>(found: &'a Found, name: &str) -> &'a Bundle {
    found.iter().find(|(known, _)| known.as_str() == name).map(|(_, bundle)| bundle).unwrap()
}

fn address(text: &str) -> WebAddress {
    text.parse().unwrap()
}

#[test]
fn there_is_every_bundle_and_what_is_built_in_can_be_read() {
    let found = Host::new().find(&Egress::default(), &[]);
    let names: Vec<String> = found.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names, ["anthropic", "debian", "git", "google", "node", "openai", "python"]);
    found.parsed().unwrap();
    for name in ["debian", "node", "python"] {
        let bundle = get(&found, name);
        assert!(bundle.rules.is_empty() && bundle.from.contains("egress."), "{bundle:?}");
    }
}

#[test]
fn no_name_of_an_index_stands_in_the_source() {
    for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bundles")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for name in [["py", "pi.org"], ["python", "hosted"], ["npm", "js."], ["debian", ".org"]] {
            assert!(!text.contains(&name.concat()));
        }
    }
}

#[test]
fn the_operator_comes_before_the_host() {
    let host = Host::new()
        .file("etc/pip.conf", "[global]\nindex-url = https://other.example/simple\n")
        .file("home/.npmrc", "registry=https://other.example/\n")
        .file("etc/apt/sources.list", "deb http://other.example/debian stable main\n");
    let settings = Egress {
        python_index: Some(address("https://ada:hunter2@index.example/simple")),
        python_extra_indexes: Some(vec![
            address("http://files.example:8080"),
            address("https://index.example"),
        ]),
        npm_registry: Some(vec![address("https://registry.example/npm/")]),
        bundles: BTreeMap::from([
            ("debian".parse().unwrap(), "allow http://mirror.example\n".to_owned()),
            ("mine".parse().unwrap(), "allow *.example.org; deny old.example.org".to_owned()),
            ("git".parse().unwrap(), " # nothing\n".to_owned()),
        ]),
        ..Egress::default()
    };
    let found = host.find(&settings, &[("PIP_INDEX_URL", "https://other.example")]);
    let text = |name: &str| get(&found, name).rules.as_str();
    assert_eq!(text("python"), "allow http://files.example:8080\nallow https://index.example");
    assert_eq!(text("node"), "allow https://registry.example");
    assert_eq!(text("debian"), "allow http://mirror.example");
    assert_eq!(text("mine"), "allow *.example.org; deny old.example.org");
    assert_eq!((text("git"), found.is_empty_bundle("git")), ("", true));
    assert!(!format!("{found:?}").contains("hunter2"), "{found:?}");
    assert!(
        get(&found, "python").from.contains("user name and password for index.example are left out"),
        "{found:?}"
    );
}

#[test]
fn pip_is_understood_in_the_order_of_its_sources() {
    let global = "[global]\nindex-url = https://global.example/simple\nextra-index-url =\n    https://one.example\n    https://two.example\n";
    let host = Host::new().file("etc/pip.conf", global);
    let rules = |host: &Host, variables: &[(&str, &str)]| host.rules("python", &Egress::default(), variables);
    assert_eq!(
        rules(&host, &[]),
        ["allow https://global.example", "allow https://one.example", "allow https://two.example"]
    );
    let host = host
        .file(
            "home/.config/pip/pip.conf",
            "[global]\nindex_url = https://user.example/\n[search]\nindex = https://no.example\n",
        )
        .file(
            "named",
            "[install]\nindex-url: http://named.example:3141/\nextra-index-url = https://three.example?a=b\n",
        );
    assert_eq!(
        rules(&host, &[]),
        ["allow https://one.example", "allow https://two.example", "allow https://user.example"]
    );
    let named = host.root.path().join("named");
    let named = ("PIP_CONFIG_FILE", named.to_str().unwrap());
    assert_eq!(rules(&host, &[named]), ["allow http://named.example:3141", "allow https://three.example"]);
    let variables = [
        named,
        ("PIP_INDEX_URL", "https://u:p@env.example"),
        ("PIP_EXTRA_INDEX_URL", "https://x.example https://y.example"),
    ];
    assert_eq!(
        rules(&host, &variables),
        ["allow https://env.example", "allow https://x.example", "allow https://y.example"]
    );
    assert_eq!(rules(&host, &[("PIP_CONFIG_FILE", "/dev/null")]), [""; 0]);
    let links = [
        ("PIP_CONFIG_FILE", "/dev/null"),
        ("PIP_INDEX_URL", "https://a.example"),
        ("PIP_FIND_LINKS", "/srv/wheels https://links.example/x"),
    ];
    assert_eq!(rules(&host, &links), ["allow https://a.example", "allow https://links.example"]);
}

#[test]
fn uv_is_understood_beside_pip() {
    let toml = "index-url = 'https://old.example'\n[[index]]\nname = 'a'\nurl = 'https://new.example/simple'\ndefault = true\n\
                [[index]]\nurl = 'https://more.example'\n[pip]\nextra-index-url = ['https://extra.example', 'file:///srv']\n";
    let host = Host::new().file("home/.config/uv/uv.toml", toml);
    let rules = |variables: &[(&str, &str)]| host.rules("python", &Egress::default(), variables);
    assert_eq!(
        rules(&[]),
        ["allow https://extra.example", "allow https://more.example", "allow https://new.example"]
    );
    let variables = [
        ("UV_DEFAULT_INDEX", "corp=https://env.example"),
        ("UV_INDEX", "b=https://b.example https://c.example"),
        ("UV_NO_CONFIG", "1"),
    ];
    assert_eq!(
        rules(&variables),
        ["allow https://b.example", "allow https://c.example", "allow https://env.example"]
    );
    assert_eq!(
        rules(&[("UV_NO_CONFIG", "1"), ("UV_INDEX_URL", "https://e.example")]),
        ["allow https://e.example"]
    );
    let broken = Host::new().file("etc/uv/uv.toml", "index-url = [");
    assert!(get(&broken.find(&Egress::default(), &[]), "python").from.contains("not valid TOML"));
}

#[test]
fn what_is_compiled_into_a_client_is_asked_for_only_where_it_counts() {
    let host = || {
        Host::new()
            .program("python3", "https://built-in.example/simple files.example\n")
            .program("npm", "https://registry.example/\n")
    };
    let nothing_said = host();
    let found = nothing_said.find(&Egress::default(), &[]);
    assert_eq!(get(&found, "python").rules, "allow https://built-in.example\nallow https://files.example");
    assert_eq!(get(&found, "node").rules, "allow https://registry.example");
    // Further indexes do not take the place of the one that is built in.
    let rules =
        host().rules("python", &Egress::default(), &[("PIP_EXTRA_INDEX_URL", "https://more.example")]);
    assert_eq!(
        rules,
        ["allow https://built-in.example", "allow https://files.example", "allow https://more.example"]
    );
    // Who names the index that is built in gets its files too, and who names another does not.
    let own = |index: &str| Egress { python_index: Some(address(index)), ..Egress::default() };
    assert_eq!(
        host().rules("python", &own("https://built-in.example/simple"), &[]),
        ["allow https://built-in.example", "allow https://files.example"]
    );
    assert_eq!(
        host().rules("python", &own("https://own.example/simple"), &[]),
        ["allow https://own.example"]
    );
    // One that cannot be it is no reason to start a program.
    let local = host();
    local.rules(
        "python",
        &own("http://127.0.0.1:3141/root/"),
        &[("npm_config_registry", "https://r.example")],
    );
    assert_eq!(*local.asked.lock().unwrap(), [""; 0]);
}

#[test]
fn help_says_what_is_built_in_where_nothing_else_does() {
    let pip = Host::new()
        .program("pip3", "-i <url>  Base URL (default https://built-in.example/simple). This\n(default: 5)");
    assert_eq!(pip.rules("python", &Egress::default(), &[]), ["allow https://built-in.example"]);
    let uv =
        Host::new().program("uv", "The URL of the index (by default: <https://built-in.example/simple>).");
    let found = uv.find(&Egress::default(), &[]);
    assert_eq!(get(&found, "python").rules, "allow https://built-in.example");
    assert!(get(&found, "python").from.contains("egress.python_extra_indexes"));
    let silent =
        Host::new().program("python3", "").program("pip3", "no such thing").program("uv", "default: none");
    assert!(silent.rules("python", &Egress::default(), &[]).is_empty());
}

#[test]
fn npm_is_understood_with_its_scopes_and_variables() {
    let npmrc = "//registry.example/:_authToken=hunter2\nregistry = \"https://${USER_PART}.example/\"\n@corp:registry=http://corp.example:4873\naudit=false\n";
    let host = Host::new().file("home/.npmrc", npmrc).file("etc/npmrc", "registry=https://all.example\n");
    let rules = |variables: &[(&str, &str)]| host.rules("node", &Egress::default(), variables);
    assert_eq!(
        rules(&[("USER_PART", "registry")]),
        ["allow http://corp.example:4873", "allow https://registry.example"]
    );
    assert_eq!(
        rules(&[("NPM_CONFIG_REGISTRY", "https://env.example/")]),
        ["allow http://corp.example:4873", "allow https://env.example"]
    );
    assert_eq!(rules(&[("npm_config_userconfig", "/nonexistent")]), ["allow https://all.example"]);
    let found = host.find(&Egress::default(), &[]);
    assert!(get(&found, "node").from.contains("an address in"), "{found:?}");
    assert!(!format!("{found:?}").contains("hunter2"));
}

#[test]
fn sources_of_apt_are_read_in_both_forms() {
    let host = Host::new()
        .file("etc/apt/sources.list", "# deb http://no.example/ x main\ndeb [arch=amd64 signed-by=/k] http://one.example/debian stable main # deb\ndeb-src https://two.example:8443/debian stable main\ndeb cdrom:[Disc]/ stable main\ndeb file:/srv/debian ./\n")
        .file("etc/apt/sources.list.d/a.sources", "Types: deb\n# URIs: http://no.example\nURIs: http://three.example/debian\n https://four.example/debian\nSuites: stable\n\nTypes: deb\nEnabled: no\nURIs: http://no.example\n\nURIs: mirror+file:/etc/apt/mirrors/list\n")
        .file("etc/apt/mirrors/list", "http://five.example/debian\tpriority:1\n")
        .file("etc/apt/sources.list.d/b.list.disabled", "deb http://no.example/ x main\n")
        .file("etc/apt/sources.list.d/c.list", "deb http://ada:hunter2@six.example/debian x main\n");
    let found = host.find(&Egress::default(), &[]);
    assert_eq!(
        get(&found, "debian").rules.lines().collect::<Vec<_>>(),
        [
            "allow http://five.example",
            "allow http://one.example",
            "allow http://six.example",
            "allow http://three.example",
            "allow https://four.example",
            "allow https://two.example:8443",
        ]
    );
    assert!(!format!("{found:?}").contains("hunter2"));
}

#[test]
fn an_index_inside_of_a_private_network_may_be_reached_there() {
    let host = Host::new()
        .name("index.example", "10.1.2.3")
        .name("localhost", "127.0.0.1")
        .name("public.example", "93.184.216.34")
        .name("metadata.example", "169.254.169.254");
    for (index, rule) in [
        ("https://index.example/simple", "allow https://index.example private"),
        ("http://localhost:3141/", "allow http://localhost:3141 private"),
        ("https://public.example/", "allow https://public.example"),
        ("https://unknown.example/", "allow https://unknown.example"),
        ("https://metadata.example/", "allow https://metadata.example"),
        ("http://192.168.1.2:8081/", "allow http://192.168.1.2:8081"),
        ("http://[::1]:8081/", "allow http://[::1]:8081"),
    ] {
        let settings = Egress { python_index: Some(address(index)), ..Egress::default() };
        assert_eq!(host.rules("python", &settings, &[]), [rule]);
    }
}

#[test]
fn a_home_that_is_somebody_elses_is_not_read() {
    if !rustix::process::geteuid().is_root() {
        use std::io::Write;
        _ = writeln!(std::io::stderr(), "skipped: a_home_that_is_somebody_elses_is_not_read: needs root");
        return;
    }
    let host = Host::new().file("home/.npmrc", "registry=https://theirs.example/\n");
    let home = host.root.path().join("home");
    std::os::unix::fs::chown(&home, Some(65534), None).unwrap();
    assert!(host.rules("node", &Egress::default(), &[]).is_empty());
}

#[test]
fn a_bundle_with_a_mistake_is_refused_with_its_position() {
    let name: Name = "mine".parse().unwrap();
    let fault = checked(&name, "allow a.example\nallow b_c.example").unwrap_err();
    assert!(fault.message().starts_with("in the bundle '@mine': line 2, column 8: "), "{fault}");
    assert!(checked(&name, "allow @python").is_err());
    assert!(checked(&name, "open").is_err());
    checked(&name, "").unwrap();
}

#[test]
fn clients_inside_are_told_of_the_index_that_is_not_their_own() {
    let host = Host::new().file("etc/pip.conf", "[global]\nindex-url = https://u:p@index.example/simple\n");
    let told = host.find(&Egress::default(), &[("UV_INDEX", "https://more.example/")]).variables;
    assert_eq!(told["PIP_INDEX_URL"], "https://index.example/simple");
    assert_eq!(told["UV_DEFAULT_INDEX"], "https://index.example/simple");
    assert_eq!(told["PIP_EXTRA_INDEX_URL"], "https://more.example/");
    let own = Host::new().program("npm", "https://registry.example/");
    assert_eq!(
        own.find(&Egress::default(), &[]).variables,
        BTreeMap::new(),
        "what is built in needs no word"
    );
    let settings = Egress {
        npm_registry: Some(vec!["https://npm.example/".parse().unwrap()]),
        python_index: Some("http://127.0.0.1:3141/simple".parse().unwrap()),
        ..Egress::default()
    };
    let told = Host::new().find(&settings, &[]).variables;
    assert_eq!(told["NPM_CONFIG_REGISTRY"], "https://npm.example/");
    assert_eq!(told["PIP_INDEX_URL"], "http://127.0.0.1:3141/simple");
}
