//! Ports inside that belong to the host, and names that are answered there.

use cubicle_backend::Backend;
use cubicle_guest::client::Listening;
use cubicle_model::{Binding, Exit, Lifetime, Listener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use crate::harness::{Host, in_time, output, place, run, skipped};

fn listening(listeners: &[Listener]) -> Binding {
    Binding { listeners: listeners.into(), ..Binding::default() }
}

/// Answers one question for an address with 127.128.0.7, and others with nothing.
async fn answer_names(socket: UdpSocket) {
    let mut question = [0; 512];
    loop {
        let (length, from) = socket.recv_from(&mut question).await.unwrap();
        let name = question[12..length].iter().position(|byte| *byte == 0).unwrap() + 13;
        let wants_address = question[name..name + 2] == [0, 1];
        let mut answer = question[..name + 4].to_vec();
        answer[2..4].copy_from_slice(&[0x81, 0x80]);
        answer[6..12].copy_from_slice(&[0, u8::from(wants_address), 0, 0, 0, 0]);
        if wants_address {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 128, 0, 7]);
        }
        socket.send_to(&answer, from).await.unwrap();
    }
}

#[tokio::test]
async fn a_name_is_answered_inside_and_leads_to_a_listener_that_tells_which_was_meant() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let place = place(Lifetime::Bound);
    backend.ensure(&place).await.unwrap();
    let guest = backend.guest(place.id);
    if output(&guest, "command -v getent; command -v bash; true").await.lines().count() != 2 {
        return skipped("there is no getent or no bash here");
    }
    // Nobody answers, and the program is told at once.
    let lookup = "getent ahostsv4 db.example.org | cut -d' ' -f1 | sort -u";
    assert_eq!(run(&guest, "getent ahostsv4 db.example.org").await.unwrap().exit, Exit::Code(2));

    let asked = [Listener::udp(53), Listener::tcp(53), Listener::tcp(80), Listener::tcp(443).everywhere()];
    let bound = in_time("bind", backend.bind(place.id, &listening(&asked))).await.unwrap();
    assert!(bound.amendment.is_empty(), "{:?}", bound.amendment);
    let Ok([Listening::Udp(names), Listening::Tcp(_), Listening::Tcp(_), Listening::Tcp(forward)]) =
        <[Listening; 4]>::try_from(bound.listeners)
    else {
        panic!("the listeners are not what was asked for");
    };
    let names = tokio::spawn(answer_names(UdpSocket::from_std(names).unwrap()));
    assert_eq!(output(&guest, lookup).await, "127.128.0.7\n");

    let forward = TcpListener::from_std(forward).unwrap();
    let connect = "bash -c 'exec 3<>/dev/tcp/db.example.org/443; echo hello >&3; cat <&3'";
    let serve = async {
        let (mut connection, _) = forward.accept().await.unwrap();
        let meant = connection.local_addr().unwrap().to_string();
        let mut heard = [0; 6];
        connection.read_exact(&mut heard).await.unwrap();
        connection.write_all(&heard.to_ascii_uppercase()).await.unwrap();
        meant
    };
    let (said, meant) = in_time("talk", async { tokio::join!(output(&guest, connect), serve) }).await;
    assert_eq!((said.as_str(), meant.as_str()), ("HELLO\n", "127.128.0.7:443"));
    names.abort();
}

#[tokio::test]
async fn listeners_of_a_durable_sandbox_come_back_to_the_next_process() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let place = place(Lifetime::Durable);
    let late = listening(&[Listener::tcp(80).everywhere(), Listener::udp(53)]);
    let first = host.backend().await;
    first.ensure(&place).await.unwrap();
    drop(first.bind(place.id, &late).await.unwrap());
    let journal = first.guest(place.id).health().await.unwrap().journal;
    drop(first);

    let second = host.backend().await;
    let guest = second.guest(place.id);
    // Connected before anybody outside has the socket again.
    let mut inside = in_time("connect", guest.port(80)).await.unwrap();
    let mut bound = in_time("bind", second.bind(place.id, &late)).await.unwrap();
    let Listening::Tcp(listener) = bound.listeners.remove(0) else { panic!("TCP was asked for") };
    let (mut outside, _) =
        in_time("accept", TcpListener::from_std(listener).unwrap().accept()).await.unwrap();
    outside.write_all(b"at last").await.unwrap();
    let mut heard = [0; 7];
    in_time("hear", inside.read_exact(&mut heard)).await.unwrap();
    assert_eq!(&heard, b"at last");
    assert_eq!(guest.health().await.unwrap().journal, journal, "listening alone is not worth a record");
    second.destroy(place.id).await.unwrap();
    host.is_clean_but_for(&[]).await;
}

#[tokio::test]
async fn many_listeners_are_had_at_once_and_too_many_are_refused() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let place = place(Lifetime::Bound);
    backend.ensure(&place).await.unwrap();
    let ports = |ports: std::ops::Range<u16>| listening(&ports.map(Listener::tcp).collect::<Vec<_>>());
    assert_eq!(backend.bind(place.id, &ports(1..41)).await.unwrap().listeners.len(), 40);
    let fault = backend.bind(place.id, &ports(41..100)).await.unwrap_err();
    assert!(fault.to_string().contains("at most 64 listeners") && fault.way_out().is_some(), "{fault}");
}
