use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cubicle_model::{Fault, Kind};
use tokio::task::JoinHandle;
use tokio::time::{Duration, advance};

use super::super::Unacceptable;
use super::super::algorithm::Algorithm;
use super::super::key_ring::{KeyRing, NoKey};
use super::super::key_set::KeySet;
use super::{key_set_text, vectors};

/// A set with one key of this id, all of them the same key.
fn keys(id: &str) -> KeySet {
    let mut key = vectors()["keys"][0].clone();
    key["kid"] = id.into();
    KeySet::parse(key_set_text(&[key]).as_bytes()).unwrap()
}

fn down() -> Fault {
    Fault::new(Kind::Unavailable, "nobody answers")
}

/// An issuer that answers what it was told to, after a while.
struct Issuer {
    ring: Arc<KeyRing>,
    answer: Arc<Mutex<Result<KeySet, ()>>>,
    asked: Arc<AtomicUsize>,
    fetching: JoinHandle<()>,
}

impl Issuer {
    fn with(answer: Result<KeySet, ()>, delay: Duration) -> Self {
        let ring = Arc::new(KeyRing::default());
        let answer = Arc::new(Mutex::new(answer));
        let asked = Arc::new(AtomicUsize::new(0));
        let (own_ring, own_answer, own_asked) = (Arc::clone(&ring), Arc::clone(&answer), Arc::clone(&asked));
        let fetching = tokio::spawn(async move {
            let fetch = || async {
                own_asked.fetch_add(1, Ordering::SeqCst);
                let answer = own_answer.lock().unwrap().clone();
                tokio::time::sleep(delay).await;
                answer.map_err(|()| down())
            };
            own_ring.keep_fresh(fetch).await;
        });
        Self { ring, answer, asked, fetching }
    }

    fn new(answer: Result<KeySet, ()>) -> Self {
        Self::with(answer, Duration::ZERO)
    }

    fn says(&self, answer: Result<KeySet, ()>) {
        *self.answer.lock().unwrap() = answer;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    async fn find(&self, id: &str) -> Result<(), NoKey> {
        self.ring.find(Some(id), Algorithm::Rs256).await.map(drop)
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.fetching.abort();
    }
}

fn is_unknown(outcome: Result<(), NoKey>) -> bool {
    matches!(outcome, Err(NoKey::Unknown(Unacceptable::UnknownKey)))
}

fn is_unavailable(outcome: Result<(), NoKey>) -> bool {
    matches!(outcome, Err(NoKey::Unavailable(fault)) if fault.kind() == Kind::Unavailable)
}

/// Lets time pass in steps, so that whoever waits in between is woken in between.
async fn pass(time: Duration) {
    let steps = 1000;
    for _ in 0..steps {
        advance(time / steps).await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_token_waits_for_the_first_keys() {
    let issuer = Issuer::with(Ok(keys("a")), Duration::from_secs(3));
    issuer.find("a").await.unwrap();
    assert_eq!(issuer.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_key_is_found_at_once_and_the_old_one_is_gone() {
    let issuer = Issuer::new(Ok(keys("a")));
    issuer.find("a").await.unwrap();
    issuer.says(Ok(keys("b")));
    issuer.find("a").await.unwrap();
    issuer.find("b").await.unwrap();
    assert_eq!(issuer.asked(), 2);
    assert!(is_unknown(issuer.find("a").await));
}

#[tokio::test(start_paused = true)]
async fn made_up_keys_make_nobody_ask_the_issuer_more_than_every_ten_seconds() {
    let issuer = Issuer::new(Ok(keys("a")));
    issuer.find("a").await.unwrap();
    for number in 0..1000 {
        assert!(is_unknown(issuer.find(&format!("made-up-{number}")).await));
    }
    assert_eq!(issuer.asked(), 2);
    pass(Duration::from_secs(9)).await;
    assert!(is_unknown(issuer.find("x").await));
    assert_eq!(issuer.asked(), 2);
    pass(Duration::from_secs(1)).await;
    assert!(is_unknown(issuer.find("x").await));
    assert_eq!(issuer.asked(), 3);
}

#[tokio::test(start_paused = true)]
async fn tokens_with_a_new_key_that_come_together_share_one_question() {
    let issuer = Issuer::with(Ok(keys("a")), Duration::from_secs(1));
    issuer.find("a").await.unwrap();
    issuer.says(Ok(keys("b")));
    let (one, two, three) = tokio::join!(issuer.find("b"), issuer.find("b"), issuer.find("made-up"));
    one.unwrap();
    two.unwrap();
    assert!(is_unknown(three));
    assert_eq!(issuer.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_appears_while_keys_are_being_fetched_is_found() {
    let issuer = Issuer::with(Ok(keys("a")), Duration::from_secs(1));
    issuer.find("a").await.unwrap();
    // The next round is under way, and has the old keys in hand.
    pass(Duration::from_millis(300_500)).await;
    assert_eq!(issuer.asked(), 2);
    issuer.says(Ok(keys("b")));
    issuer.find("b").await.unwrap();
    assert_eq!(issuer.asked(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_key_is_noticed_within_five_minutes() {
    let issuer = Issuer::new(Ok(keys("a")));
    issuer.find("a").await.unwrap();
    issuer.says(Ok(keys("b")));
    pass(Duration::from_secs(299)).await;
    issuer.find("a").await.unwrap();
    pass(Duration::from_secs(2)).await;
    assert!(is_unknown(issuer.find("a").await));
}

#[tokio::test(start_paused = true)]
async fn keys_outlive_an_issuer_that_is_down_for_a_day_and_no_longer() {
    let issuer = Issuer::new(Ok(keys("a")));
    issuer.find("a").await.unwrap();
    issuer.says(Err(()));
    assert!(is_unavailable(issuer.find("b").await), "whether there is such a key is not known");
    pass(Duration::from_secs(23 * 3600)).await;
    issuer.find("a").await.unwrap();
    pass(Duration::from_secs(3600)).await;
    assert!(is_unavailable(issuer.find("a").await));
    issuer.says(Ok(keys("a")));
    pass(Duration::from_secs(61)).await;
    issuer.find("a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_issuer_that_is_down_from_the_start_is_tried_again_with_longer_and_longer_pauses() {
    let issuer = Issuer::new(Err(()));
    assert!(is_unavailable(issuer.find("a").await));
    pass(Duration::from_secs(3600)).await;
    assert!((60..70).contains(&issuer.asked()), "{}", issuer.asked());
    issuer.says(Ok(keys("a")));
    pass(Duration::from_secs(61)).await;
    issuer.find("a").await.unwrap();
}
