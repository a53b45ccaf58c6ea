//! What sandboxes may reach by the kind of work that they are for, from inside.

use serde_json::json;

use crate::inside::Inside;
use crate::world::{PUBLIC, Setting, World, in_a_world, in_a_world_with};

const SERVICES: Setting = Setting {
    listen: None,
    flags: &[],
    environment: &[
        ("CUBICLE_PYTHON_INDEX", "https://index.test/python/simple/"),
        ("MCP_BASE_URL", "http://mcp.test:8080"),
        ("OBJ_URL", "http://objects.test:8090"),
    ],
};

/// The hosts of a bundle, which lead to a good server here.
fn hosts(world: &World, bundle: &str) -> Vec<String> {
    let all = world.server.get("/api/v1/egress/bundles").ok();
    let found = all
        .as_array()
        .expect("a list")
        .iter()
        .find(|one| one["name"] == bundle)
        .unwrap_or_else(|| panic!("no @{bundle}"));
    let rules = found["rules"].as_str().expect("rules are text");
    let words = rules.split_whitespace().filter_map(|word| word.strip_prefix("https://"));
    let hosts: Vec<String> = words.map(|word| word.split('/').next().expect("a host").to_owned()).collect();
    assert!(!hosts.is_empty(), "{rules}");
    for host in &hosts {
        world.names.set(host.trim_start_matches("*."), &[PUBLIC]);
    }
    hosts.into_iter().filter(|host| !host.contains('*')).collect()
}

fn of_template<'a>(world: &'a World, template: &str) -> Inside<'a> {
    if template != "default" {
        world.server.put(&format!("/api/v1/templates/{template}"), &json!({})).ok();
    }
    world.leased(&json!({ "template": template }))
}

/// Whether a tunnel for TLS is opened.
fn opens(inside: &Inside<'_>, host: &str) -> bool {
    let said = inside.prints(&format!("print('OPEN' if tunnel('{host}:443') else 'CLOSED')"));
    said.ends_with("OPEN\n")
}

#[test]
fn every_kind_of_work_reaches_what_it_needs_and_nothing_else() {
    in_a_world_with(SERVICES, |world| {
        let bundles = ["anthropic", "google", "openai", "git", "python"];
        let hosts = bundles.map(|bundle| hosts(world, bundle));
        for (template, expected) in [
            ("task", [true, true, true, false, false]),
            ("agent", [true, true, true, true, false]),
            ("default", [false, false, false, false, true]),
        ] {
            let inside = of_template(world, template);
            assert_eq!(inside.egress()["said_by"], "template");
            for (hosts, expected) in hosts.iter().zip(expected) {
                for host in hosts {
                    assert_eq!(opens(&inside, host), expected, "{template}: {host}");
                }
            }
            for host in ["origin.test", "evil.test", "10.1.2.3", "169.254.169.254", "mcp.test", "localhost"] {
                assert!(!opens(&inside, host), "{template}: {host}");
            }
        }
        // The list of seed 001, as somebody would write it.
        let inside = world.sandbox("allow @git; allow @openai; allow @python");
        for (bundle, hosts) in bundles.iter().zip(&hosts) {
            for host in hosts {
                assert_eq!(opens(&inside, host), ["git", "openai", "python"].contains(bundle), "{host}");
            }
        }
        assert_eq!(world.trapped(), Vec::<String>::new());
    });
}

#[test]
fn a_workflow_reaches_the_internet_and_the_services_that_it_is_given() {
    in_a_world_with(SERVICES, |world| {
        for (name, at) in [("mcp.test", "10.1.2.3:8080"), ("objects.test", "127.0.0.1:8090")] {
            world.names.set(name, &[at.split(':').next().expect("an address")]);
            world.outside.web(at, None);
        }
        let inside = of_template(world, "workflow");
        for url in [
            "http://origin.test/x",
            "http://mcp.test:8080/x",
            "http://objects.test:8090/x",
            "http://evil.test/x",
        ] {
            let said = inside.prints(&format!("get('{url}')"));
            assert!(said.contains("REACHED GET /x"), "{url}: {said}");
        }
        assert!(opens(&inside, "index.test"), "packages come from there");
        for host in [
            "http://10.1.2.3/",
            "http://private.test/",
            "http://169.254.169.254/",
            "http://127.0.0.1:9000/",
            "http://mcp.test/",
        ] {
            let said = inside.prints(&format!("get('{host}')"));
            assert!(said.contains("403 Forbidden"), "{host}: {said}");
        }
        // One that is held shorter: the services alone.
        inside.allow("allow http://mcp.test:8080 private");
        assert!(inside.prints("get('http://mcp.test:8080/x')").contains("REACHED GET /x"));
        for url in ["http://origin.test/x", "http://objects.test:8090/x"] {
            assert!(inside.prints(&format!("get('{url}')")).contains("403 Forbidden"), "{url}");
        }
        assert_eq!(world.trapped(), Vec::<String>::new());
    });
}

/// One address of a provider and the databases, as a strict profile has it; then all but private networks.
#[test]
fn rules_for_networks_hold_from_inside() {
    in_a_world(|world| {
        world.outside.echo("10.1.2.3:6432", "a database\n");
        let strict = world.sandbox("allow 93.184.216.34/32; allow tcp://10.1.2.3:6432");
        assert!(strict.prints("get('http://93.184.216.34/x')").contains("REACHED GET /x"));
        assert!(strict.prints("print(tunnel('10.1.2.3:6432').recv(100))").contains("a database"));
        for target in [
            "93.184.216.35:80",
            "10.1.2.3:5432",
            "10.1.2.3:80",
            "10.1.2.4:6432",
            "origin.test:80",
            "169.254.169.254:80",
        ] {
            let said = strict.prints(&format!("through(tunnel('{target}'), 'ATTACK')"));
            assert!(said.contains("403 Forbidden"), "{target}: {said}");
        }
        let permissive = world.sandbox("open; deny 10.0.0.0/8; deny 192.168.0.0/16; deny 172.16.0.0/12");
        for url in ["http://origin.test/x", "http://evil.test/x", "http://93.184.216.34/x"] {
            assert!(permissive.prints(&format!("get('{url}')")).contains("REACHED GET /x"), "{url}");
        }
        for host in
            ["10.1.2.3", "private.test", "192.168.0.1", "172.16.0.1", "172.31.255.255", "169.254.169.254"]
        {
            let said = permissive.prints(&format!("get('http://{host}/ATTACK')"));
            assert!(said.contains("403 Forbidden"), "{host}: {said}");
        }
        assert!(!world.outside.heard_of("ATTACK"));
        assert_eq!(world.trapped(), Vec::<String>::new());
    });
}

/// A worker reports to the control plane by one request, and reaches nothing else of it.
#[test]
fn a_webhook_of_the_control_plane_is_reached_by_its_one_request() {
    in_a_world(|world| {
        world.names.set("control.test", &["127.0.0.1"]);
        let hook = format!("http://control.test:{}/hooks/task-1", world.api_port());
        let inside = world.sandbox(&format!("allow POST {hook} private"));
        let posted = inside.prints(&format!("get('{hook}', method='POST', more='Content-Length: 0\\r\\n')"));
        assert!(posted.contains("x-request-id"), "the control plane answers: {posted}");
        for (method, url) in [
            ("GET", hook.clone()),
            ("POST", hook.replace("task-1", "task-2")),
            ("GET", hook.replace("hooks/task-1", "api/v1/leases")),
            ("POST", hook.replace("hooks/task-1", "hooks/../api/v1/execs")),
        ] {
            let more = if method == "POST" { "Content-Length: 0\\r\\n" } else { "" };
            let said = inside.prints(&format!("get('{url}', method='{method}', more='{more}')"));
            assert!(said.contains("403 Forbidden"), "{method} {url}: {said}");
        }
        let said = inside.prints("through(tunnel('control.test:$API'), 'GET / HTTP/1.0\\r\\n\\r\\n')");
        assert!(!said.contains("x-request-id"), "{said}");
    });
}
