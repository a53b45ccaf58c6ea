use cubicle_backend::Backend;
use cubicle_model::*;
use std::time::Instant;
fn p50(v: &mut Vec<f64>) -> f64 { v.sort_by(|a,b| a.total_cmp(b)); v[v.len()/2] }
fn rid() -> SandboxId { let mut b=[0u8;16]; use std::io::Read; std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut b).unwrap(); SandboxId::from_random(b) }
fn place() -> Placement { Placement {
        id: rid(), lifetime: Lifetime::Bound, isolation: Isolation::Namespaces, trust: Trust::Medium,
        root: Root::Host, workspace: Medium::Memory, limits: Limits::default(), env: Default::default(), labels: Default::default(),
    } }
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let dir = std::env::args().nth(1).unwrap();
    let n: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let b = cubicle_backend_local::LocalBackend::open(cubicle_backend_local::Options::new(dir)).await.unwrap();
    let w = place();
    b.ensure(&w).await.unwrap();
    let g = b.guest(w.id);
    let spec = ExecSpec::new(Command::Argv(vec!["/bin/true".into()]));
    let (mut sp, mut warm, mut cold, mut create, mut destroy) = (vec![], vec![], vec![], vec![], vec![]);
    for i in 0..n {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let t = Instant::now();
        std::process::Command::new("/bin/true").status().unwrap();
        if i > 5 { sp.push(t.elapsed().as_secs_f64()*1e3); }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let t = Instant::now();
        g.run(&spec, Default::default()).await.unwrap();
        if i > 5 { warm.push(t.elapsed().as_secs_f64()*1e3); }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let p = place();
        let t = Instant::now();
        b.ensure(&p).await.unwrap();
        let c = t.elapsed().as_secs_f64()*1e3;
        b.guest(p.id).run(&spec, Default::default()).await.unwrap();
        if i > 5 { cold.push(t.elapsed().as_secs_f64()*1e3); create.push(c); }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let t = Instant::now();
        b.destroy(p.id).await.unwrap();
        if i > 5 { destroy.push(t.elapsed().as_secs_f64()*1e3); }
    }
    let s = p50(&mut sp);
    for (n, v) in [("warm", &mut warm), ("cold", &mut cold), ("create", &mut create), ("destroy", &mut destroy)] { let x = p50(v); println!("{n}: {x:.3} ms ratio {:.2}", x/s); }
    println!("spawn {s:.3}");
}
