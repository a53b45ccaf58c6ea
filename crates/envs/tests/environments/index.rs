//! Indexes: one that a request names, and the real one.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cubicle_envs::{AllowedIndex, Cache, EnvSettings, Environments, Indexes, Wanted};
use cubicle_model::Kind;
use cubicle_model::egress::{Bundles, OwnAddresses, Policy};

use crate::site::{Site, name, python, skip, want};
use crate::wheels::module;

/// A simple index over a directory, on loopback. It ends with the test's process.
struct SmallIndex {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl SmallIndex {
    fn serve(directory: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/simple", listener.local_addr().unwrap());
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut line = String::new();
                _ = reader.read_line(&mut line);
                let path = line.split_whitespace().nth(1).unwrap_or_default().to_owned();
                noted.lock().unwrap().push(path.clone());
                let mut header = String::new();
                while reader.read_line(&mut header).is_ok_and(|length| length > 2) {
                    header.clear();
                }
                let (status, kind, body) = answer(&directory, &path);
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let mut stream = stream;
                _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
            }
        });
        Self { address, asked }
    }

    fn allowed(&self) -> AllowedIndex {
        let policy: Policy = format!("allow {}", self.address.trim_end_matches("/simple")).parse().unwrap();
        let rules = policy.resolve(&Bundles::default(), &OwnAddresses::default()).unwrap();
        AllowedIndex::decide(&self.address.parse().unwrap(), &rules, &[IpAddr::V4(Ipv4Addr::LOCALHOST)])
            .unwrap()
    }
}

fn answer(directory: &std::path::Path, path: &str) -> (&'static str, &'static str, Vec<u8>) {
    if let Some(file) = path.strip_prefix("/files/")
        && let Ok(bytes) = std::fs::read(directory.join(file))
    {
        return ("200 OK", "application/octet-stream", bytes);
    }
    let package = path.trim_start_matches("/simple/").trim_end_matches('/');
    let mut page = String::from("<html><body>");
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let file = entry.file_name().into_string().unwrap();
        if file.starts_with(&format!("{package}-")) {
            let digest = sha256(&std::fs::read(entry.path()).unwrap());
            page.push_str(&format!("<a href=\"/files/{file}#sha256={digest}\">{file}</a>"));
        }
    }
    match page.contains("href") {
        true => ("200 OK", "text/html", page.into_bytes()),
        false => ("404 Not Found", "text/html", Vec::new()),
    }
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    cubicle_model::hexadecimal(&sha2::Sha256::digest(bytes))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_from_a_requests_index_stays_with_its_tenant() {
    let Some(site) = Site::new("what_comes_from_a_requests_index_stays_with_its_tenant") else { return };
    let elsewhere = site.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    module(&elsewhere, "alpha", "6.6", &[]);
    module(&site.wheels(), "alpha", "1.0", &[]);
    module(&site.wheels(), "beta", "1.0", &[]);
    let index = SmallIndex::serve(elsewhere);
    let environments = site.open().await;
    let wanted = Wanted { index: Some(index.allowed()), ..want(&["alpha"]) };
    let first = environments.ensure(&name("acme"), &wanted).await.unwrap();
    assert_eq!(first.packages, ["alpha==6.6"]);
    // Nobody else gets it: not by the same requirements, and not by the same index.
    let plain = environments.ensure(&name("other"), &want(&["alpha"])).await.unwrap();
    assert_eq!(plain.packages, ["alpha==1.0"]);
    let same = environments.ensure(&name("other"), &wanted).await.unwrap();
    assert_eq!((same.packages, same.cache), (vec!["alpha==6.6".to_owned()], Cache::Miss));
    assert_ne!(same.key, first.key);
    let again = environments.ensure(&name("acme"), &wanted).await.unwrap();
    assert_eq!((again.key, again.cache), (first.key, Cache::Hit));
    // It stands alone: what only the operator's directories have is not found.
    let mixed = Wanted { index: Some(index.allowed()), ..want(&["beta"]) };
    assert_eq!(environments.ensure(&name("acme"), &mixed).await.unwrap_err().kind(), Kind::Invalid);
}

#[tokio::test(flavor = "multi_thread")]
async fn naming_the_operators_own_index_is_nothing_new() {
    let Some(site) = Site::new("naming_the_operators_own_index_is_nothing_new") else { return };
    module(&site.wheels(), "alpha", "1.0", &[]);
    let index = SmallIndex::serve(site.wheels());
    let indexes = Indexes { default_index: Some(index.address.parse().unwrap()), ..Indexes::default() };
    let environments = Environments::open(EnvSettings { indexes, ..site.settings() }).await.unwrap();
    assert!(environments.has_index(&index.address.parse().unwrap()).await);
    let plain = environments.ensure(&name("acme"), &want(&["alpha"])).await.unwrap();
    let wanted = Wanted { index: Some(index.allowed()), ..want(&["alpha"]) };
    let named = environments.ensure(&name("other"), &wanted).await.unwrap();
    assert_eq!((named.key, named.cache), (plain.key, Cache::Hit));
    assert!(index.asked.lock().unwrap().iter().any(|path| path.starts_with("/simple/alpha")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_that_uv_has_built_in_is_the_operators_where_no_other_is_named() {
    let test = "the_index_that_uv_has_built_in_is_the_operators_where_no_other_is_named";
    let Some(site) = Site::new(test) else { return };
    #[expect(clippy::disallowed_methods, reason = "uv knows its index")]
    let help = std::process::Command::new(site.uv()).args(["pip", "sync", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let built_in = help.split("(by default: <").nth(1).unwrap().split('>').next().unwrap();
    let built_in = format!("{built_in}/").parse().unwrap();
    let with = |indexes| EnvSettings { indexes, ..site.settings() };
    let environments = Environments::open(with(Indexes::default())).await.unwrap();
    assert!(environments.has_index(&built_in).await);
    assert!(!environments.has_index(&"https://index.example/simple".parse().unwrap()).await);
    let other = Some("https://index.example/simple".parse().unwrap());
    let environments =
        Environments::open(with(Indexes { default_index: other, ..Indexes::default() })).await.unwrap();
    assert!(!environments.has_index(&built_in).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_comes_from_the_real_index() {
    let test = "an_environment_comes_from_the_real_index";
    let Some(site) = Site::new(test) else { return };
    let mut settings = EnvSettings { indexes: Indexes::default(), ..site.settings() };
    for variable in
        ["SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "UV_DEFAULT_INDEX"]
    {
        #[expect(clippy::disallowed_methods, reason = "whoever runs the tests says how the index is reached")]
        if let Ok(value) = std::env::var(variable) {
            settings.variables.insert(variable.to_owned(), value);
        }
    }
    let environments = Environments::open(settings).await.unwrap();
    let made = match environments.ensure(&name("acme"), &want(&["requests>=2.31"])).await {
        Err(fault) if fault.kind() == Kind::Unavailable => {
            return skip(test, "the package index cannot be reached");
        }
        made => made.unwrap(),
    };
    assert_eq!(made.modules, ["requests"]);
    assert!(made.packages.iter().any(|package| package.starts_with("urllib3==")), "{:?}", made.packages);
    if made.prefix.is_none() {
        assert_eq!(python(&made.path, "import requests; print(requests.codes.ok)"), "200");
    }
}
