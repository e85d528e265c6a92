//! Files that come and go, told of at once.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use standfast_io::watch;

fn told(receiver: &Receiver<(String, bool)>) -> (String, bool) {
    receiver.recv_timeout(Duration::from_secs(10)).expect("a word within ten seconds")
}

#[test]
fn a_file_is_told_of_when_it_comes_and_when_it_goes() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("there"), "").unwrap();
    let (sender, receiver) = channel();
    let files = [("there", path("there")), ("web", path("web")), ("later", path("new/later"))];
    let files = files.map(|(name, path)| (name.to_owned(), path)).into();
    let mut watched = watch::Files::new(move |name, is| sender.send((name.to_owned(), is)).is_ok());
    watched.set(files).unwrap();
    assert_eq!(told(&receiver), ("there".into(), true), "only what is there is told of");

    // Each by an event: looking every second would take half a second on average.
    let mut took: Vec<Duration> = Vec::new();
    for n in 0..11 {
        let start = Instant::now();
        match n % 2 {
            0 => fs::write(path("web"), "").unwrap(),
            _ => fs::remove_file(path("web")).unwrap(),
        }
        assert_eq!(told(&receiver), ("web".into(), n % 2 == 0));
        took.push(start.elapsed());
    }
    took.sort();
    eprintln!("told after {:?} (median of {})", took[took.len() / 2], took.len());
    assert!(took[took.len() / 2] < Duration::from_millis(300), "{took:?}");

    fs::rename(path("web"), path("elsewhere")).unwrap();
    assert_eq!(told(&receiver), ("web".into(), false));
    symlink("nowhere", path("web")).unwrap();
    assert_eq!(told(&receiver), ("web".into(), true), "a link that leads nowhere is there");

    // A directory that comes later, and is replaced.
    fs::create_dir(path("new")).unwrap();
    fs::write(path("new/later"), "").unwrap();
    assert_eq!(told(&receiver), ("later".into(), true));
    fs::rename(path("new"), path("old")).unwrap();
    assert_eq!(told(&receiver), ("later".into(), false));
    fs::create_dir(path("new")).unwrap();
    fs::write(path("new/later"), "").unwrap();
    assert_eq!(told(&receiver), ("later".into(), true));

    // Others in their place: what is the same for a name is not told again, and one that comes back is told of anew.
    fs::write(path("other"), "").unwrap();
    let named = |files: &[(&str, &str)]| files.iter().map(|(n, p)| ((*n).to_owned(), path(p))).collect();
    watched.set(named(&[("later", "other"), ("web", "gone")])).unwrap();
    assert_eq!(told(&receiver), ("web".into(), false));
    watched.set(named(&[("web", "other")])).unwrap();
    assert_eq!(told(&receiver), ("web".into(), true));
    watched.set(named(&[("later", "other"), ("web", "other")])).unwrap();
    assert_eq!(told(&receiver), ("later".into(), true));
}
