//! Connections that are passed on by pid 1, over streams that carry nothing but bytes.

use cubicle_guest::client::{ClientError, Forwarding, Guest, Listening};
use cubicle_guest::hello::Key;
use cubicle_model::Listener;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::{KEY, Sandbox, random, within};

/// A client across a relay that copies bytes and loses descriptors, as every connection to another machine does.
fn far_away(sandbox: &Sandbox) -> Guest {
    let socket = sandbox.socket();
    let connect = move || {
        let socket = socket.clone();
        async move {
            let mut near = UnixStream::connect(socket).await?;
            let (mut far, ours) = UnixStream::pair()?;
            // Ends with either side.
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
            Ok(ours)
        }
    };
    Guest::new(connect, Key::new(KEY), sandbox.guest.sandbox(), random)
}

async fn connect(address: &str, listener: Listener) -> TcpStream {
    within(TcpStream::connect((address, listener.port))).await.unwrap()
}

/// Answers the next connection with what it said, in upper case, and says where it came from.
async fn shout_back(forwarding: &mut Forwarding) -> (Listener, String) {
    let mut forwarded = within(forwarding.next()).await.unwrap();
    let mut heard = Vec::new();
    within(forwarded.stream.read_to_end(&mut heard)).await.unwrap();
    within(forwarded.stream.write_all(&heard.to_ascii_uppercase())).await.unwrap();
    within(forwarded.stream.shutdown()).await.unwrap();
    (forwarded.listener, forwarded.to.to_string())
}

async fn says(stream: &mut TcpStream, text: &[u8]) {
    within(stream.write_all(text)).await.unwrap();
    within(stream.shutdown()).await.unwrap();
}

async fn hears(stream: &mut TcpStream) -> Vec<u8> {
    let mut heard = Vec::new();
    within(stream.read_to_end(&mut heard)).await.unwrap();
    heard
}

#[tokio::test]
async fn a_connection_inside_is_passed_on_with_the_listener_and_the_address_that_was_meant() {
    let sandbox = Sandbox::start().await;
    let guest = far_away(&sandbox);
    let refused = guest.listen(&[Listener::tcp(0)]).await;
    assert!(matches!(refused, Err(ClientError::Protocol(_))), "no descriptor can cross: {refused:?}");

    let asked = [Listener::tcp(0), Listener::tcp(0).everywhere()];
    let mut forwarding = guest.forward(&asked, 2).await.unwrap();
    let [proxy, forward] = forwarding.listeners().try_into().unwrap();
    let long = vec![b'x'; 3 << 20];
    let mut inside = connect("127.128.7.9", forward).await;
    let talk = async {
        let (mut read, mut write) = inside.split();
        let say = async {
            write.write_all(&long).await.unwrap();
            write.shutdown().await.unwrap();
        };
        let mut heard = Vec::new();
        let (_, read) = tokio::join!(say, read.read_to_end(&mut heard));
        read.unwrap();
        heard
    };
    let (heard, meant) = within(async { tokio::join!(talk, shout_back(&mut forwarding)) }).await;
    assert_eq!(meant, (forward, format!("127.128.7.9:{}", forward.port)));
    assert_eq!(heard, long.to_ascii_uppercase());

    let mut inside = connect("127.0.0.1", proxy).await;
    says(&mut inside, b"hello").await;
    assert_eq!(shout_back(&mut forwarding).await, (proxy, format!("127.0.0.1:{}", proxy.port)));
    assert_eq!(hears(&mut inside).await, b"HELLO");
}

#[tokio::test]
async fn more_programs_than_connections_are_parked_wait_for_their_turn() {
    let sandbox = Sandbox::start().await;
    let mut forwarding = far_away(&sandbox).forward(&[Listener::tcp(0)], 1).await.unwrap();
    let listener = forwarding.listeners()[0];
    let mut programs = Vec::new();
    for number in 0..40 {
        let mut program = connect("127.0.0.1", listener).await;
        says(&mut program, format!("program {number}").as_bytes()).await;
        programs.push(program);
    }
    for _ in &programs {
        shout_back(&mut forwarding).await;
    }
    for (number, program) in programs.iter_mut().enumerate() {
        assert_eq!(hears(program).await, format!("PROGRAM {number}").into_bytes());
    }
}

#[tokio::test]
async fn programs_wait_for_a_host_that_died_and_are_served_when_it_is_back() {
    let sandbox = Sandbox::start().await;
    let first = far_away(&sandbox);
    let mut forwarding = first.forward(&[Listener::tcp(0)], 4).await.unwrap();
    let listener = forwarding.listeners()[0];
    let mut served = connect("127.0.0.1", listener).await;
    let broken = within(forwarding.next()).await.unwrap();
    drop((forwarding, first, broken));
    assert_eq!(hears(&mut served).await, b"", "what was being served ends with the host");

    let mut program = connect("127.0.0.1", listener).await;
    says(&mut program, b"is anybody there").await;
    for round in 0..3 {
        let mut forwarding = far_away(&sandbox).forward(&[listener], 2).await.unwrap();
        if round == 0 {
            shout_back(&mut forwarding).await;
            assert_eq!(hears(&mut program).await, b"IS ANYBODY THERE");
        }
        // Every host leaves connections behind that are parked, and dead.
        let mut again = connect("127.0.0.1", listener).await;
        says(&mut again, b"again").await;
        shout_back(&mut forwarding).await;
        assert_eq!(hears(&mut again).await, b"AGAIN");
    }
    wait_for_no_parked(&sandbox).await;
}

/// Connections that nobody holds any more are let go of.
async fn wait_for_no_parked(sandbox: &Sandbox) {
    within(async {
        while sandbox.guest.health().await.unwrap().connections > 1 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_listener_can_be_had_either_way_and_the_last_one_who_asks_has_it() {
    let sandbox = Sandbox::start().await;
    let listener = sandbox.guest.listen(&[Listener::tcp(0)]).await.unwrap();
    let listener = Listener::tcp(listener[0].port().unwrap());
    let mut program = connect("127.0.0.1", listener).await;
    says(&mut program, b"forwarded").await;
    let mut forwarding = sandbox.guest.forward(&[listener], 1).await.unwrap();
    shout_back(&mut forwarding).await;
    assert_eq!(hears(&mut program).await, b"FORWARDED");

    let Some(Listening::Tcp(given)) = sandbox.guest.listen(&[listener]).await.unwrap().pop() else {
        panic!("it is a TCP listener");
    };
    let given = tokio::net::TcpListener::from_std(given).unwrap();
    let _program = connect("127.0.0.1", listener).await;
    within(given.accept()).await.unwrap();

    let datagrams = sandbox.guest.forward(&[Listener::udp(0)], 1).await.unwrap_err();
    assert_eq!(datagrams.code(), Some("invalid"), "{datagrams}");
}
