-- TPC-C's five transactions as functions, each one transaction; the driver is pgbench.
create function nu(a int, x int, y int) returns int language sql volatile as
  'select ((floor(random() * (a + 1))::int | (x + floor(random() * (y - x + 1))::int)) + 7) % (y - x + 1) + x';
create function any_of(x int, y int) returns int language sql volatile as 'select x + floor(random() * (y - x + 1))::int';
create function last_name(n int) returns text language sql immutable as
  $$select string_agg((array['BAR','OUGHT','ABLE','PRI','PRES','ESE','ANTI','CALLY','ATION','EING'])[n / f % 10 + 1], '' order by f desc) from unnest(array[100, 10, 1]) f$$;

create function new_order(ws int, items int, customers int) returns int language plpgsql as $$
declare
  w int := any_of(1, ws); d int := any_of(1, 10); c int := nu(1023, 1, customers); lines int := any_of(5, 15);
  o int; tax numeric; discount numeric; price numeric; quantity int; left_over int; info text; i int; supply int; line int := 0; local int := 1;
begin
  select c_discount into discount from customer where c_w_id = w and c_d_id = d and c_id = c;
  select w_tax into tax from warehouse where w_id = w;
  update district set d_next_o_id = d_next_o_id + 1 where d_w_id = w and d_id = d returning d_next_o_id - 1 into o;
  insert into orders values (w, d, o, c, now(), null, lines, local);
  insert into new_orders values (w, d, o);
  -- In the order of their numbers, so that two orders do not wait for each other.
  for i in select distinct nu(8191, 1, items) from generate_series(1, lines) order by 1 loop
    line := line + 1;
    supply := case when ws > 1 and random() < 0.01 then any_of(1, ws) else w end;
    quantity := any_of(1, 10);
    select i_price into price from item where i_id = i;
    select s_quantity, substr(s_dist, d * 24 - 23, 24) into left_over, info from stock where s_w_id = supply and s_i_id = i for update;
    update stock set s_quantity = case when left_over > quantity + 10 then left_over - quantity else left_over - quantity + 91 end,
      s_ytd = s_ytd + quantity, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + (supply <> w)::int where s_w_id = supply and s_i_id = i;
    insert into order_line values (w, d, o, line, i, supply, null, quantity, least(quantity * price * (1 + tax) * (1 - discount), 9999), info);
  end loop;
  return o;
end $$;

create function payment(ws int, items int, customers int) returns int language plpgsql as $$
declare
  w int := any_of(1, ws); d int := any_of(1, 10); cw int := w; cd int := d; c int; amount numeric := any_of(100, 500000) / 100.0; found_name text;
begin
  if ws > 1 and random() < 0.15 then cw := any_of(1, ws); cd := any_of(1, 10); end if;
  update warehouse set w_ytd = w_ytd + amount where w_id = w;
  update district set d_ytd = d_ytd + amount where d_w_id = w and d_id = d;
  if random() < 0.6 then
    found_name := last_name(nu(255, 0, least(999, customers - 1)));
    select c_id into c from customer where c_w_id = cw and c_d_id = cd and c_last = found_name order by c_first
      offset (select count(*) / 2 from customer where c_w_id = cw and c_d_id = cd and c_last = found_name) limit 1;
  end if;
  c := coalesce(c, nu(1023, 1, customers));
  update customer set c_balance = c_balance - amount, c_ytd_payment = c_ytd_payment + amount, c_payment_cnt = c_payment_cnt + 1,
    c_data = case when c_credit = 'BC' then left(c || ' ' || cd || ' ' || cw || ' ' || d || ' ' || w || ' ' || amount || ' ' || c_data, 500) else c_data end
    where c_w_id = cw and c_d_id = cd and c_id = c;
  insert into history values (c, cd, cw, d, w, now(), amount, 'payment');
  return c;
end $$;

create function order_status(ws int, items int, customers int) returns int language plpgsql as $$
declare
  w int := any_of(1, ws); d int := any_of(1, 10); c int := nu(1023, 1, customers); o int; total numeric;
begin
  perform c_balance, c_first, c_last from customer where c_w_id = w and c_d_id = d and c_id = c;
  select o_id into o from orders where o_w_id = w and o_d_id = d and o_c_id = c order by o_id desc limit 1;
  select sum(ol_amount) into total from order_line where ol_w_id = w and ol_d_id = d and ol_o_id = o;
  return o;
end $$;

create function delivery(ws int, items int, customers int) returns int language plpgsql as $$
declare
  w int := any_of(1, ws); o int; c int; total numeric; done int := 0;
begin
  for d in 1..10 loop
    select no_o_id into o from new_orders where no_w_id = w and no_d_id = d order by no_o_id limit 1 for update skip locked;
    continue when o is null;
    delete from new_orders where no_w_id = w and no_d_id = d and no_o_id = o;
    update orders set o_carrier_id = any_of(1, 10) where o_w_id = w and o_d_id = d and o_id = o returning o_c_id into c;
    update order_line set ol_delivery_d = now() where ol_w_id = w and ol_d_id = d and ol_o_id = o;
    select sum(ol_amount) into total from order_line where ol_w_id = w and ol_d_id = d and ol_o_id = o;
    update customer set c_balance = c_balance + total, c_delivery_cnt = c_delivery_cnt + 1 where c_w_id = w and c_d_id = d and c_id = c;
    done := done + 1;
  end loop;
  return done;
end $$;

create function stock_level(ws int, items int, customers int) returns int language plpgsql as $$
declare
  w int := any_of(1, ws); d int := any_of(1, 10); low int := any_of(10, 20); next int; found int;
begin
  select d_next_o_id into next from district where d_w_id = w and d_id = d;
  select count(distinct s_i_id) into found from order_line join stock on s_w_id = w and s_i_id = ol_i_id
    where ol_w_id = w and ol_d_id = d and ol_o_id >= next - 20 and ol_o_id < next and s_quantity < low;
  return found;
end $$;
