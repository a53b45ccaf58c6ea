//! Databases of older and newer versions.

use std::os::unix::fs::PermissionsExt;

use cubicle_model::lease::LeaseStatus;
use cubicle_model::{Fault, Kind, Name};
use cubicle_store::{LeaseFilter, Store, TaskFilter};
use cubicle_tests_postgresql::Cluster;

use crate::world::{Database, in_time, kind, name, page, random, user};

/// As the first version left it.
const FIRST: &str = include_str!("../../migrations/0001_control_plane.sql");
const DATA: &str = "
    CREATE TABLE schema_steps (step BIGINT PRIMARY KEY);
    INSERT INTO schema_steps VALUES (1);
    INSERT INTO tenants VALUES ('acme', '{\"leases\": 7}', 2, 1700000000000, 3, 41);
    INSERT INTO nodes VALUES ('node-aaaaaaaaaaaaaaaaaaaaaaaaaa', 'here', 1700000000000, 0, '00');
    INSERT INTO leases VALUES ('lease-aaaaaaaaaaaaaaaaaaaaaaaaaa', 'acme', 'ada', 'w', 'r', 'f', 'default', NULL,
        'node-aaaaaaaaaaaaaaaaaaaaaaaaaa', 'QUEUED', 'queued', 60, NULL, 1700000000000, 1700000060000, NULL, NULL,
        1000, 1048576, 0, '{}', 1);
";
const NEWER: &str = "
    CREATE TABLE schema_steps (step BIGINT PRIMARY KEY);
    INSERT INTO schema_steps VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (999);
    CREATE TABLE tenants (something_else BIGINT);
";

async fn has_everything(store: Store) {
    let tenant = store.tenant(name("acme")).await.unwrap();
    assert_eq!((tenant.quota.leases, tenant.weight, tenant.version), (Some(7), 2, 3));
    assert_eq!(store.newest_event(name("acme")).await.unwrap(), 41);
    let leases = store.leases(LeaseFilter::default(), page(10)).await.unwrap();
    assert_eq!((leases.len(), leases[0].status), (1, LeaseStatus::Queued));
    let now = leases[0].created_at;
    let once = store.once(name("acme"), user("ada"), "k".into(), "f".into(), "s".into(), now).await.unwrap();
    assert_eq!(once, cubicle_store::Repeat::First);
    assert!(store.artifacts(name("acme"), page(10)).await.unwrap().is_empty());
    let secrets = store.secrets_of(name("acme")).await.unwrap();
    assert_eq!((secrets.revision, secrets.secrets.len()), (0, 0));
    assert_eq!(store.bill(leases[0].id.to_string()).await.unwrap(), None);
    assert!(store.tasks(TaskFilter::default(), page(10)).await.unwrap().is_empty());
}

fn refused_as_newer(outcome: Result<Store, Fault>) {
    let refusal = outcome.expect_err("it is newer");
    assert_eq!(refusal.kind(), Kind::Conflict);
    assert!(refusal.message().contains("schema 999"), "{refusal}");
    assert!(refusal.way_out().is_some());
}

#[test]
fn an_older_sqlite_database_is_brought_forward_with_its_data() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cubicle.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch(FIRST).unwrap();
    connection.execute_batch(DATA).unwrap();
    drop(connection);
    in_time(has_everything(Store::open_sqlite(&path, random()).unwrap()));
    // And again, when there is nothing to do.
    let tenant: Result<_, Fault> = in_time(Store::open_sqlite(&path, random()).unwrap().tenant(name("acme")));
    assert_eq!(tenant.unwrap().name, "acme".parse::<Name>().unwrap());
}

#[test]
fn an_older_postgresql_database_is_brought_forward_with_its_data() {
    let Some(cluster) = Cluster::shared() else { return };
    let url = cluster.fresh_database();
    let mut client = postgres::Client::connect(&url, postgres::NoTls).unwrap();
    client.batch_execute(FIRST).unwrap();
    client.batch_execute(DATA).unwrap();
    // Servers that start together do not get in each other's way.
    let opening: Vec<_> = (0..4)
        .map(|_| {
            let at = Database::Postgres(url.clone());
            std::thread::spawn(move || at.open())
        })
        .collect();
    let stores: Vec<Store> = opening.into_iter().map(|opening| opening.join().unwrap().unwrap()).collect();
    in_time(has_everything(stores[0].clone()));
}

#[test]
fn a_newer_sqlite_database_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cubicle.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    connection.execute_batch(NEWER).unwrap();
    drop(connection);
    let before = std::fs::read(&path).unwrap();
    refused_as_newer(Store::open_sqlite(&path, random()));
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_newer_postgresql_database_is_refused_and_left_as_it_is() {
    let Some(cluster) = Cluster::shared() else { return };
    let url = cluster.fresh_database();
    let mut client = postgres::Client::connect(&url, postgres::NoTls).unwrap();
    client.batch_execute(NEWER).unwrap();
    refused_as_newer(Store::open_postgres(&url, random()));
    let tables = client.query("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", &[]).unwrap();
    assert_eq!(tables.len(), 2);
}

#[test]
fn a_migration_that_fails_leaves_the_older_version_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cubicle.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch(FIRST).unwrap();
    connection.execute_batch(DATA).unwrap();
    // The second step makes two tables; the second of them is in the way.
    connection.execute_batch("CREATE TABLE repeatable (in_the_way BIGINT)").unwrap();
    assert_eq!(kind(Store::open_sqlite(&path, random())), Kind::Internal);
    let tables = "SELECT COUNT(*) FROM sqlite_master WHERE name = 'artifacts'";
    assert_eq!(connection.query_row(tables, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
    connection.execute_batch("DROP TABLE repeatable").unwrap();
    in_time(has_everything(Store::open_sqlite(&path, random()).unwrap()));
}

#[test]
fn the_files_of_a_sqlite_database_are_its_owners_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cubicle.db");
    let modes = || {
        let mut files: Vec<_> = std::fs::read_dir(directory.path()).unwrap().flatten().collect();
        files.sort_by_key(std::fs::DirEntry::file_name);
        let mode = |file: &std::fs::DirEntry| file.metadata().unwrap().permissions().mode() & 0o777;
        files.iter().map(mode).collect::<Vec<_>>()
    };
    let store = Store::open_sqlite(&path, random()).unwrap();
    assert_eq!(modes(), [0o600; 3], "the file, its log and the index of it");
    drop(store);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let _store = Store::open_sqlite(&path, random()).unwrap();
    assert_eq!(modes()[0], 0o600);
}
